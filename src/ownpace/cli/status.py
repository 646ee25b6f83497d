"""`ownpace show`: where a run stands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ownpace.cli.help import HelpOption
from ownpace.cli.options import Json

if TYPE_CHECKING:
    from ownpace.run.standing import RunStanding


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    as_json: Json = False,
    help_: HelpOption = False,
) -> None:
    """Show where a run stands: how far it came, which checkpoints are whole, and how to go on."""
    from ownpace.report.table import comparison_table
    from ownpace.run.standing import standing_of  # torch, for which `--help` must not wait

    found = standing_of(run)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    console = Console()
    for line in _lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.summary is not None:
        console.print(comparison_table([found.summary], console.width))


def _lines(found: RunStanding) -> list[str]:
    workers = "" if found.workers is None else f", {found.workers} workers"
    engine = "" if found.engine is None else f", engine {found.engine}"
    lines = [f"{found.run}: {found.algorithm} on {found.task}{workers}{engine}", _end(found)]
    for each in found.checkpoints:
        state = "whole" if each.problem is None else each.problem
        lines.append(f"checkpoint at sample {each.samples:,} ({each.nbytes / 1e6:,.2f} MB): {state}")
    if not found.checkpoints:
        lines.append("no checkpoint")
    if found.can_go_on:
        lines.append(f"go on with: ownpace train --resume {shlex.quote(found.run)}")
    return lines


def _end(found: RunStanding) -> str:
    of = "" if found.budget is None else f" of {found.budget:,}"
    if found.summary is None:
        return f"at sample {found.samples:,}{of} or later, without a last record: still running, or cut off"
    return f"ended at sample {found.summary.samples:,}{of}: {found.summary.reason}"
