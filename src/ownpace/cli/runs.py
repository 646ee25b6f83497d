"""`ownpace runs`: the runs that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ownpace.cli.help import HelpOption

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look (default: runs).")]


def runs(folder: Folder = Path("runs"), as_json: AsJson = False, help_: HelpOption = False) -> None:
    """List runs, the latest last: what was run, how well it did, how it ended.

    Without a folder, those in runs/:

      ownpace runs
      ownpace runs experiments --json

    A fleet is shown by its paces in thousands of samples per second, or by the number of its workers.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ownpace.core.printable import printable
    from ownpace.run.listing import list_runs

    found = list_runs(folder)
    if as_json:
        typer.echo(json.dumps({"runs": [each.as_dict() for each in found]}))
        return
    if not found:
        typer.echo(f"no runs in {folder}; make one: ownpace train --out {folder}/first")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("run", overflow="fold", ratio=1)
    for head in ("algorithm", "task", "fleet"):
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=12)
    table.add_column("result", justify="right", no_wrap=True)
    for head in ("state", "when"):
        table.add_column(head, overflow="fold")
    for each in found:
        score = "–" if each.loss is None else f"{each.loss:.4g}"
        score = score if each.accuracy is None else f"{each.accuracy:.1%}"
        name = Path(each.run)
        shown = str(name.relative_to(folder)) if name != folder and name.is_relative_to(folder) else each.run
        # As text: a name may hold what would be markup.
        cells = (shown, each.algorithm, each.task, each.fleet, score, each.state, each.when[5:])
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)
