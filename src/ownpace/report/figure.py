"""A comparison as a picture: accuracy over time, and what each worker does when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ownpace.core.contract.errors import InputError
from ownpace.core.whole_file import whole_file
from ownpace.report.colours import ACTIVITIES, colour_of
from ownpace.report.outline import RunOutline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ACTIVITIES
MOST_TIMELINES = 6
ALIKE = 4.0
"""Timelines share a scale if none of them is this many times as long as another: longer ones would be mere stripes."""


def draw_comparison(runs: Mapping[str, RunOutline], path: Path, note: str | None = None) -> None:
    """Draw one line and one timeline for each run, by its name, into a PNG, SVG or PDF file.

    Raises:
        InputError: matplotlib is not installed, or nothing was recorded that could be drawn.
        OSError: The file cannot be written.
    """
    figure = comparison_figure(runs, note)
    with whole_file(path) as part:
        figure.savefig(part, dpi=150, format=path.suffix.removeprefix("."))


def comparison_figure(runs: Mapping[str, RunOutline], note: str | None = None) -> Figure:
    """The same in memory.

    Raises:
        InputError: matplotlib is not installed, or nothing was recorded that could be drawn.
    """
    try:
        # Not pyplot, which keeps every figure and looks for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("it needs matplotlib; install it: pip install 'ownpace[plot]'") from None
    engines = {_engine(run) for run in runs.values()}
    # Of a prediction and its measurement, the measurement gets the timeline; a run without detail has none.
    measured = {name: run for name, run in runs.items() if len(engines) < 2 or _engine(run) != "virtual"}
    shown = {name: run for name, run in list(measured.items())[:MOST_TIMELINES] if run.spans}
    curve = any(run.points for run in runs.values())
    if not curve and not shown:
        raise InputError("nothing was recorded that it could show; leave out --no-detail or --timing-only")
    heights = ([3.6] if curve else []) + [0.42 + 0.2 * len(run.rows) for run in shown.values()]
    figure = Figure(figsize=(9.5, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
    if curve:
        _draw_curves(axes[0], runs, note)
        axes = axes[1:]
    ends = _ends(list(shown.values()))
    for axis, (name, run), end in zip(axes, shown.items(), ends, strict=True):
        _draw_timeline(axis, name, run, end)
        axis.tick_params(labelbottom=axis is axes[-1] or len(set(ends)) > 1)
    if shown:
        axes[-1].set_xlabel("seconds")
        _legend(axes[0])
    return figure


def _ends(shown: Sequence[RunOutline]) -> list[float]:
    """Up to when each timeline goes: as far as all of them, so that lengths can be compared, if they are alike."""
    windows = [run.window_s for run in shown]
    if windows and max(windows) <= ALIKE * min(windows):
        windows = [max(windows)] * len(windows)
        # No more than is known of every run.
        known = min(run.known_until for run in shown)
        return [min(window, known) or 1.0 for window in windows]
    return [min(window, run.known_until) or 1.0 for window, run in zip(windows, shown, strict=True)]


def _draw_curves(axis: Axes, runs: Mapping[str, RunOutline], note: str | None) -> None:
    engines = {_engine(run) for run in runs.values()}
    goal = None
    for name, run in runs.items():
        target = run.target.target
        goal = target.accuracy if target.accuracy is not None else target.loss
        axis.set_ylabel("test loss" if run.points is run.losses else "test accuracy")
        # By algorithm, not by run: a prediction has the colour of what it predicts.
        colour = colour_of("" if run.run is None else run.run.algorithm)
        style = "--" if len(engines) > 1 and _engine(run) == "virtual" else "-"  # a prediction next to its run
        if run.points:
            axis.plot(*zip(*run.points, strict=True), label=name, color=colour, linewidth=1.8, linestyle=style)
        if run.target.reached_s is not None and goal is not None:
            axis.plot([run.target.reached_s], [goal], "o", color=colour, markersize=6)
    if goal is not None:
        axis.axhline(goal, color="#999999", linewidth=0.8, linestyle=":")
        text = f"target {goal:.1%}" if axis.get_ylabel() == "test accuracy" else f"target {goal:g}"
        # Beside the curves, where none can run over it.
        beside = axis.get_yaxis_transform()
        axis.text(1.005, goal, text, transform=beside, fontsize=8, color="#666666", va="center")
    axis.set_xlabel("seconds")
    axis.set_xlim(left=0)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, title=note, alignment="left")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_timeline(axis: Axes, name: str, run: RunOutline, end: float) -> None:
    bars = {key: [(t, min(until, end) - t) for t, until in spans if t < end] for key, spans in run.spans.items()}
    for (kind, index), spans in bars.items():
        thin = kind == "transfer"
        place = (index + 0.28, 0.16) if thin else (index - 0.4, 0.8)
        bar = axis.broken_barh(spans, place, facecolors=COLOURS[kind], zorder=3 if thin else 2)
        if kind == "compute":
            bar.set(edgecolor="white", linewidth=0.5)
    updates = [t for t in run.updates if t < end]
    axis.plot(updates, [-0.62] * len(updates), "|", color="#222222", markersize=5, clip_on=False)
    rows, workers = len(run.rows), run.num_workers
    title = f"{name} ({rows} of {workers} workers)" if workers > rows else name
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_yticks(range(rows), run.rows, fontsize=7)
    axis.set_ylim(rows - 0.4, -0.8)
    axis.set_xlim(0, end)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(axis: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches: list[object] = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    patches.append(Line2D([], [], marker="|", linestyle="", color="#222222", label="update"))
    axis.legend(handles=patches, loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=8)


def _engine(run: RunOutline) -> str:
    return "" if run.run is None else run.run.engine
