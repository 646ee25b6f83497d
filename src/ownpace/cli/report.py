"""`ownpace report`: runs of the past as one page."""

from __future__ import annotations

import gzip
import shlex
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownpace.cli.help import HelpOption
from ownpace.core.contract.errors import InputError, NotWritten
from ownpace.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "report.html"
_NAMES = {"--out": PAGE, "--csv": "report.csv", "--trace": "report.json"}
"""What a file could be called, by option."""
_EXPORT = "Other formats"
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
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="What every node did when, for Perfetto (ui.perfetto.dev); packed if FILE ends in .gz.",
        rich_help_panel=_EXPORT,
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="All evaluations, one line each.", rich_help_panel=_EXPORT),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option("--tensorboard", metavar="LOGDIR", help="Scalars for TensorBoard.", rich_help_panel=_EXPORT),
]


def report(
    runs: Runs,
    out: Page = None,
    trace: Trace = None,
    csv: Csv = None,
    tensorboard: TensorBoard = None,
    help_: HelpOption = False,
) -> None:
    """Show runs as one HTML page that needs no network: curves, where the time went, timelines, settings.

    Of one run, of several side by side, or of all runs of a comparison:

      ownpace report runs/first
      ownpace report runs/first runs/second --out both.html
      ownpace report runs/demo

    Or in another format, and then without a page unless --out asks for one:

      ownpace report runs/first --trace first.json.gz
    """
    # Here, because it imports much that other commands need not wait for.
    from ownpace.run.opened import find_runs

    folders = find_runs(runs)
    others = {"--trace": trace, "--csv": csv, "--tensorboard": tensorboard}
    for option, path in others.items():
        if path is None:
            continue
        with _writing(path, option):
            _export(option, folders, path)
    if out is not None or not any(others.values()):
        path = out or _default(runs)
        with _writing(path, "--out"):
            _write_page(folders, path)


def _write_page(folders: list[Path], path: Path) -> None:
    from ownpace.report.page.document import MARK, write_page
    from ownpace.run.opened import open_runs

    check_own(path, "--out", MARK)
    with _reading(folders):
        opened = list(open_runs(folders))
    made_at = datetime.now().astimezone().strftime("%d %B %Y, %H:%M")
    write_page(opened, path, made_at)
    typer.echo(f"{len(folders)} {'run' if len(folders) == 1 else 'runs'} in {path}; open it in a browser")


def _export(option: str, folders: list[Path], path: Path) -> None:
    from ownpace.report.exports import csv_file, trace
    from ownpace.run.opened import events_by_name

    problems: list[str] = []
    if option == "--tensorboard":
        count = _to_tensorboard(folders, path, problems)
        words = f"{count:,} scalars in {path}; look at them: tensorboard --logdir {shlex.quote(str(path))}"
    elif option == "--csv":
        check_own(path, option, csv_file.MARK)
        count = csv_file.write_csv(events_by_name(folders, problems, detail=False), path)
        words = f"{count:,} evaluations in {path}"
    else:
        check_own(path, option, trace.MARK)
        count = trace.write_trace(events_by_name(folders, problems), path)
        words = f"{count:,} records in {path}; open it in ui.perfetto.dev"
    for problem in problems:
        typer.echo(f"ownpace: {printable(problem, 1000)}", err=True)
    typer.echo(words)


def _to_tensorboard(folders: list[Path], path: Path, problems: list[str]) -> int:
    from ownpace.report.exports.loggers import TensorBoardLogger
    from ownpace.report.exports.scalars import Scalars
    from ownpace.run.opened import began_at, events_by_name

    count = 0
    for folder, (name, events) in zip(folders, events_by_name(folders, problems).items(), strict=True):
        logger, scalars = TensorBoardLogger(path / name.replace("/", "-"), began_at(folder)), Scalars()
        for event in events:
            for scalar in scalars.of(event):
                logger.log(scalar)
                count += 1
        logger.close()
    return count


@contextmanager
def _reading(folders: list[Path]) -> Iterator[None]:
    """Say what takes so long: of a long run, millions of records are read."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_interactive:
        yield
        return
    with console.status(f"reading {len(folders)} {'run' if len(folders) == 1 else 'runs'}"):
        yield


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} cannot be written: {error}; choose another with {option}") from None


def _default(runs: list[Path]) -> Path:
    # Beside the folder and not in it: what is in it is the run's, and is replaced with the run.
    whole = runs[0].resolve()
    return runs[0].parent / f"{whole.name}.html" if len(runs) == 1 and whole.name else Path(PAGE)


def check_own(path: Path, option: str, mark: str) -> None:
    """Raise if the file is someone else's: what we write begins with `mark`."""
    if path.is_dir():
        raise InputError(f"{option} was given {path}, a folder; name a file in it, as in {path / _NAMES[option]}")
    if not path.exists():
        return
    with suppress(OSError, EOFError), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        if file.read(len(mark.encode())) == mark.encode():
            return
    raise InputError(f"{path} was not written by ownpace report, so it is not replaced; give {option} another name")
