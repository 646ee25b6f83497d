"""Results as Python programs and notebooks show them: text, HTML, a figure that is not only a file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ownpace.report.figure import comparison_figure, draw_comparison
from ownpace.report.outline import RunOutline
from ownpace.report.summary import Summary
from ownpace.report.table import comparison_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 80
_NOTEBOOK_COLUMNS = 120
_PRE = '<pre style="font-family: monospace; line-height: normal; white-space: pre; overflow-x: auto">{code}</pre>'


def as_text(summaries: Sequence[Summary]) -> str:
    """The table of these runs as plain lines that fit into 80 columns."""
    return _printed(summaries, _COLUMNS).export_text().rstrip()


def as_html(summaries: Sequence[Summary]) -> str:
    """The same for a notebook. Whatever names are in it is escaped."""
    return _printed(summaries, _NOTEBOOK_COLUMNS).export_html(inline_styles=True, code_format=_PRE)


def _printed(summaries: Sequence[Summary], columns: int) -> Console:
    # A terminal of its own: neither the size of the user's nor its colours matter here.
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, force_jupyter=False)
    console.print(comparison_table(summaries, columns))
    return console


def as_figure(runs: Mapping[str, RunOutline], path: str | Path | None = None) -> Figure:
    """One line and one timeline for each run; notebooks show it by themselves.

    Raises:
        InputError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    if path is not None:
        draw_comparison(runs, Path(path))
    figure = comparison_figure(runs)
    # Notebooks show only figures of pyplot by themselves, which ours are not; others they ask for a picture.
    vars(figure)["_repr_png_"] = partial(_png, figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100, format="png")
    return buffer.getvalue()
