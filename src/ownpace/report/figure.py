"""A comparison as a picture: accuracy over time, and what each worker does when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ownpace.core.contract.errors import InputError
from ownpace.core.whole_file import whole_file
from ownpace.report.outline import RunOutline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"compute": "#3b7dd8", "load": "#8e6cc9", "wait": "#e8e8e8", "transfer": "#e07b39"}
LINES = ("#222222", "#d1495b", "#3b7dd8", "#2e933c", "#8e6cc9", "#e07b39", "#00798c", "#9a6324")
MOST_TIMELINES = 6


def draw_comparison(runs: Mapping[str, RunOutline], path: Path) -> None:
    """Draw one line and one timeline for each run, by its name, into a PNG, SVG or PDF file.

    Raises:
        InputError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    try:
        # Not pyplot, which keeps every figure and looks for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("it needs matplotlib; install it: pip install 'ownpace[plot]'") from None
    engines = {_engine(run) for run in runs.values()}
    # Of a prediction and its measurement, the measurement gets the timeline.
    measured = {name: run for name, run in runs.items() if len(engines) < 2 or _engine(run) != "virtual"}
    shown = dict(list(measured.items())[:MOST_TIMELINES])
    rows = [len(run.rows) for run in shown.values()]
    curve = any(run.scores or run.losses for run in runs.values())
    heights = ([3.6] if curve else []) + [0.42 + 0.2 * count for count in rows]
    figure = Figure(figsize=(9.5, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
    if curve:
        _draw_curves(axes[0], runs)
        axes = axes[1:]
    # One window for all runs, so that lengths can be compared; and no more of it than is known of every run.
    end = min(max(run.window_s for run in shown.values()), *(run.known_until for run in shown.values())) or 1.0
    for axis, (name, run) in zip(axes, shown.items(), strict=True):
        _draw_timeline(axis, name, run, end)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("seconds")
    _legend(axes[0])
    with whole_file(path) as part:
        figure.savefig(part, dpi=150, format=path.suffix.removeprefix("."))


def _draw_curves(axis: Axes, runs: Mapping[str, RunOutline]) -> None:
    target = None
    colours: dict[str, str] = {}
    engines = {_engine(run) for run in runs.values()}
    for name, run in runs.items():
        scores = run.scores
        points = scores or run.losses
        target = None if run.run is None else run.run.target
        axis.set_ylabel("test accuracy" if scores else "test loss")
        algorithm = "" if run.run is None else run.run.algorithm
        # By algorithm, not by run: a prediction has the colour of what it predicts.
        colour = colours.setdefault(algorithm, LINES[len(colours) % len(LINES)])
        style = "--" if len(engines) > 1 and _engine(run) == "virtual" else "-"  # a prediction next to its run
        axis.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.8, linestyle=style)
        reached = next((t for t, score in scores if target is not None and score >= target), None)
        if reached is not None and target is not None:
            axis.plot([reached], [target], "o", color=colour, markersize=6)
    if target is not None:
        axis.axhline(target, color="#999999", linewidth=0.8, linestyle=":")
        axis.annotate(f"target {target:.1%}", (0, target), fontsize=8, color="#666666", va="bottom")
    axis.set_xlabel("seconds")
    axis.set_xlim(left=0)
    axis.legend(loc="lower right", frameon=False)
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
    title = f"{name} (first {rows} of {workers} workers)" if workers > rows else name
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
