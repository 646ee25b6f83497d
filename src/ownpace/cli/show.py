"""Showing results, even where the plotting library is missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ownpace.core.contract.errors import InputError
from ownpace.report.advice import said_once
from ownpace.report.figure import draw_comparison
from ownpace.report.outline import RunOutline
from ownpace.run import Result


def draw(runs: Mapping[str, RunOutline], path: Path, console: Console, note: str | None = None) -> None:
    """Draw a figure and say where it is, or why there is none."""
    try:
        draw_comparison(runs, path, note)
    except (InputError, OSError) as error:
        console.print(f"no figure: {error}", markup=False, soft_wrap=True)
    else:
        console.print(f"figure in {path}", markup=False, soft_wrap=True)


def show_warnings(results: Sequence[Result]) -> None:
    """Say on standard error what a friend would; of several seeds, one stands for all."""
    both = len({result.summary.engine for result in results}) > 1
    warnings: dict[str, Sequence[str]] = {}
    for result in results:
        summary = result.summary
        who = f"{summary.algorithm}, predicted" if both and summary.engine == "virtual" else summary.algorithm
        warnings.setdefault(who, result.warnings)
    console = Console(stderr=True)
    for line in said_once((who, line) for who, lines in warnings.items() for line in lines):
        console.print(f"warning: {line}", style="yellow", markup=False, highlight=False)


def show_remarks(results: Sequence[Result], console: Console) -> None:
    """Say what algorithms have to say of their runs, each once: of several seeds, one stands for all."""
    remarks = {f"{result.summary.algorithm}: {result.remark}": None for result in results if result.remark is not None}
    for remark in remarks:
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def show_place(folder: Path, console: Console) -> None:
    """Say where results are, and how to look at them."""
    console.print(f"results in {folder}", markup=False, soft_wrap=True)
    console.print(
        f"as a page: ownpace report {shlex.quote(str(folder))}", markup=False, highlight=False, soft_wrap=True
    )
