"""Showing results, even where the plotting library is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from ownpace.core.contract.errors import InputError
from ownpace.report.figure import draw_comparison
from ownpace.report.outline import RunOutline


def draw(runs: Mapping[str, RunOutline], path: Path, console: Console) -> None:
    """Draw a figure and say where it is, or why there is none."""
    try:
        draw_comparison(runs, path)
    except (InputError, OSError) as error:
        console.print(f"no figure: {error}", markup=False)
    else:
        console.print(f"figure in {path}", markup=False)
