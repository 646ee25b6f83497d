"""`ownpace watch`: a run that is going on, seen from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownpace.cli.help import HelpOption
from ownpace.core.contract.errors import InputError
from ownpace.core.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ownpace.report.ongoing import OngoingRun
    from ownpace.run.following import Following

MOST_WORKERS = 16
LOOK_EVERY_S, LINE_EVERY_S = 0.5, 5.0
QUIET_S = 60.0
"""After so long without a new record, that is said."""


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    help_: HelpOption = False,
) -> None:
    """Follow a run until it ends: how far it is, how it learns, how busy its workers are.

    In another terminal, or on another machine that sees the folder; Ctrl-C ends the watching and not the run:

      ownpace train --engine process --epochs 50 --out runs/first
      ownpace watch runs/first
    """
    from rich.console import Console

    from ownpace.run.config import CONFIG
    from ownpace.run.following import Following

    if not (run / CONFIG).is_file():
        raise InputError(f"{run} is not the folder of a run; give one that has a {CONFIG}")
    console = Console()
    following = Following(run)
    try:
        watched = _on_screen(run, following, console) if console.is_interactive else _in_lines(run, following, console)
    except KeyboardInterrupt:
        console.print("the run is not watched any more; it goes on by itself", highlight=False)
        return
    _show_end(watched, console)


def _on_screen(run: Path, following: Following, console: Console) -> OngoingRun:
    from rich.live import Live

    from ownpace.report.ongoing import OngoingRun

    watched, latest = OngoingRun(), time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            if following.began_anew():
                watched = OngoingRun()
            for event in following.new_events():
                latest = time.monotonic()
                watched.take(event)
            if watched.end is not None:
                return watched
            live.update(_picture(run, watched, time.monotonic() - latest, console.width), refresh=True)
            time.sleep(LOOK_EVERY_S)


def _in_lines(run: Path, following: Following, console: Console) -> OngoingRun:
    from ownpace.report.ongoing import OngoingRun

    watched, said, said_at = OngoingRun(), "", -LINE_EVERY_S
    while True:
        if following.began_anew():
            watched = OngoingRun()
        for event in following.new_events():
            watched.take(event)
        line = f"{run}: {_done(watched)}{watched.speed()}  {watched.scores()}"
        if watched.run is not None and line != said and time.monotonic() - said_at >= LINE_EVERY_S:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            said, said_at = line, time.monotonic()
        if watched.end is not None:
            return watched
        time.sleep(LOOK_EVERY_S)


def _done(watched: OngoingRun) -> str:
    budget = None if watched.run is None else watched.run.samples
    return "" if not budget else f"{min(1.0, watched.samples / budget):.0%}  "


def _picture(run: Path, watched: OngoingRun, quiet_s: float, width: int) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if watched.run is None:
        return Text(f"{run}: starting", no_wrap=True, overflow="ellipsis")
    first = watched.run
    workers = first.groups.get("workers", [])
    names = tuple(map(printable, (first.algorithm, first.task, first.engine)))
    title = f"{run}: {names[0]} on {names[1]}, {len(workers)} workers, engine {names[2]}"
    parts: list[RenderableType] = [Text(title, style="bold", no_wrap=True, overflow="ellipsis")]
    if first.samples:
        bar = Table.grid(padding=(0, 1))
        done = f"{_done(watched)}{watched.samples:,} of {first.samples:,} samples"
        bar.add_row(ProgressBar(first.samples, min(watched.samples, first.samples), width=28), done)
        parts.append(bar)
    lines = [watched.speed(), watched.scores(), *map(printable, watched.news)]
    if quiet_s > QUIET_S:
        lines.append(f"nothing new for {quiet_s / 60:.0f} min: is it still running?")
    parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
    rows = Table.grid(padding=(0, 1))
    for name in [each for each in workers if each in watched.workers][:MOST_WORKERS]:
        worker = watched.workers[name]
        speed = f"{worker.busy:>4.0%} busy, {worker.samples_per_s:,.0f} samples/s"
        rows.add_row(Text(printable(name, 24)), ProgressBar(1.0, worker.busy, width=20), speed)
    parts.append(rows)
    if len(workers) > MOST_WORKERS:
        parts.append(Text(f"and {len(workers) - MOST_WORKERS:,} more workers", style="dim"))
    return Group(*parts)


def _show_end(watched: OngoingRun, console: Console) -> None:
    from ownpace.report.table import comparison_table

    summary = watched.sums.summary()
    console.print(comparison_table([summary], console.width))
    if summary.reason != "finished":
        console.print(f"ended early: {printable(summary.reason, 500)}", markup=False, highlight=False, soft_wrap=True)
