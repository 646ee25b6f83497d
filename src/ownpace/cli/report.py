"""`ownpace report`: runs of the past as one page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ownpace.cli.help import HelpOption
from ownpace.core.contract.errors import InputError, NotWritten

PAGE = "report.html"
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold some.", show_default=False)
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help=f"The page (default: RUN.html beside the folder of one run, {PAGE} for several).",
        show_default=False,
    ),
]


def report(runs: Runs, out: Page = None, help_: HelpOption = False) -> None:
    """Show runs as one HTML page that needs no network: curves, where the time went, timelines, settings.

    Of one run, of several side by side, or of all runs of a comparison:

      ownpace report runs/first
      ownpace report runs/first runs/second --out both.html
      ownpace report runs/demo
    """
    # Here, because both import much that other commands need not wait for.
    from ownpace.report.page.document import write_page
    from ownpace.run.opened import find_runs, open_runs

    folders = find_runs(runs)
    path = out or _default(runs)
    check_page(path)
    made_at = datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    try:
        write_page(list(open_runs(folders)), path, made_at)
    except OSError as error:
        raise NotWritten(f"{path} cannot be written: {error}; choose another with --out") from None
    typer.echo(f"{len(folders)} {'run' if len(folders) == 1 else 'runs'} in {path}; open it in a browser")


def _default(runs: list[Path]) -> Path:
    # Beside the folder and not in it: what is in it is the run's, and is replaced with the run.
    whole = runs[0].resolve()
    return runs[0].parent / f"{whole.name}.html" if len(runs) == 1 and whole.name else Path(PAGE)


def check_page(path: Path) -> None:
    """Raise if the file is someone else's."""
    from ownpace.report.page.document import MARK

    if path.is_dir():
        raise InputError(f"--out was given {path}, a folder; name a file in it, as in {path / PAGE}")
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK.encode():
                raise InputError(f"{path} is not a report of ownpace, so it is not replaced; choose another with --out")
