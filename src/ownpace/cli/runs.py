"""`ownpace runs`: the runs that there are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len, set_cell_size

from ownpace.cli.help import HelpOption
from ownpace.core.printable import printable

if TYPE_CHECKING:
    from ownpace.run.listing import ListedRun

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look (default: runs).")]


def runs(folder: Folder = Path("runs"), as_json: AsJson = False, help_: HelpOption = False) -> None:
    """List runs, the latest last: what was run, how well it did, how it ended.

    Without a folder, those in runs/:

      ownpace runs
      ownpace runs experiments --json

    A fleet is shown by its paces in thousands of samples per second, or by the number of its workers.
    """
    from rich.console import Console

    from ownpace.run.listing import list_runs

    found = list_runs(folder)
    if as_json:
        typer.echo(json.dumps({"runs": [each.as_dict() for each in found]}))
        return
    if not found:
        typer.echo(f"no runs in {folder}; make one: ownpace train --out {folder}/first")
        return
    console = Console()
    for line in _lines(found, folder, console.width):
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


HEAD = ("algorithm", "task", "fleet", "result", "state", "when")
LEFT_OUT = ("when", "fleet", "task")
"""Where there is no room for all, in this order."""
WIDEST = 12
"""Of a column; only names of runs are longer, and whole."""
GAP = "  "
RUN = "run"


def _lines(found: Sequence[ListedRun], folder: Path, width: int) -> Iterator[str]:
    """A table. Runs of one folder stand below its name, and a name that has no room in front of its line, above it."""
    rows = [tuple(map(_short, map(printable, _cells(each)))) for each in found]
    columns = {head: (head, *cells) for head, *cells in zip(HEAD, *rows, strict=True)}
    missing = _make_room(columns, width)
    widths = _widths(columns.values())
    head, *rows = zip(*columns.values(), strict=True)
    places = [_place(each, folder) for each in found]
    room = width - sum(widths) - len(GAP) * len(widths)
    longest = max((size for _, name in places if (size := cell_len(name)) <= room), default=0)
    longest = max(longest, len(RUN))
    yield _line(RUN, longest, head, widths)
    yield "─" * (longest + sum(widths) + len(GAP) * len(widths))
    last = ""
    for (inside, name), row in zip(places, rows, strict=True):
        if inside != last:
            last = inside
            if inside:
                yield inside
        if cell_len(name) > longest:
            yield name
            name = ""
        yield _line(name, longest, row, widths)
    if missing:
        yield f"no room for: {', '.join(missing)}"


def _make_room(columns: dict[str, tuple[str, ...]], width: int) -> list[str]:
    """Take columns away until the rest and a short name fit; which those were."""
    missing = []
    for name in LEFT_OUT:
        if len(RUN) + sum(len(GAP) + each for each in _widths(columns.values())) <= width:
            break
        del columns[name]
        missing.append(name)
    return missing


def _widths(columns: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in columns]


def _line(name: str, longest: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    sized = [set_cell_size(cell, size) for cell, size in zip(cells, widths, strict=True)]
    return GAP.join([set_cell_size(name, longest), *sized]).rstrip()


def _place(listed: ListedRun, folder: Path) -> tuple[str, str]:
    """The folder that a run is in, if it is not the one that was asked for, and the run's name."""
    path = Path(listed.run)
    if path == folder:
        return "", printable(listed.run)
    inside = path.relative_to(folder)
    if len(inside.parts) < 2:
        return "", printable(inside.name)
    return printable(f"{inside.parent}/"), "  " + printable(inside.name)


def _cells(listed: ListedRun) -> tuple[str, ...]:
    score = "–" if listed.loss is None else f"{listed.loss:.4g}"
    score = score if listed.accuracy is None else f"{listed.accuracy:6.1%}"
    return listed.algorithm, listed.task, listed.fleet, score, listed.state, listed.when[5:]


def _short(text: str) -> str:
    return text if cell_len(text) <= WIDEST else set_cell_size(text, WIDEST - 1) + "…"
