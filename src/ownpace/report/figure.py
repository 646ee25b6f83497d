"""A comparison as a picture: accuracy over time, and what each worker does when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute, End, Evaluation, Event, Load, Run, Transfer, Update, Wait

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"compute": "#3b7dd8", "load": "#8e6cc9", "wait": "#e8e8e8", "transfer": "#e07b39"}
LINES = ("#222222", "#d1495b", "#3b7dd8", "#2e933c", "#8e6cc9", "#e07b39", "#00798c", "#9a6324")
UPDATES_SHOWN = 6
MOST_ROWS = 8
MOST_TIMELINES = 6


def draw_comparison(runs: Mapping[str, Sequence[Event]], path: Path) -> None:
    """Draw one line and one timeline for each run, by its name, into a PNG, SVG or PDF file.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        # Not pyplot, which keeps every figure and looks for a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("figures are drawn by matplotlib; install it: pip install 'ownpace[plot]'") from None
    engines = {_engine(events) for events in runs.values()}
    # Of a prediction and its measurement, the measurement gets the timeline.
    measured = {name: events for name, events in runs.items() if len(engines) < 2 or _engine(events) != "virtual"}
    shown = dict(list(measured.items())[:MOST_TIMELINES])
    rows = [min(MOST_ROWS, len(_workers(events))) for events in shown.values()]
    curve = any(isinstance(event, Evaluation) for events in runs.values() for event in events)
    heights = ([3.6] if curve else []) + [0.42 + 0.2 * count for count in rows]
    figure = Figure(figsize=(9.5, sum(heights) + 1.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)[:, 0]
    if curve:
        _draw_curves(axes[0], runs)
        axes = axes[1:]
    end = _window(list(shown.values()))
    for axis, (name, events) in zip(axes, shown.items(), strict=True):
        _draw_timeline(axis, name, events, end)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("seconds")
    _legend(axes[0])
    figure.savefig(path, dpi=150)


def _draw_curves(axis: Axes, runs: Mapping[str, Sequence[Event]]) -> None:
    target = None
    colours: dict[str, str] = {}
    engines = {_engine(events) for events in runs.values()}
    for name, events in runs.items():
        scores = [(e.t, e.accuracy) for e in events if isinstance(e, Evaluation) and e.accuracy is not None]
        losses = [(e.t, e.loss) for e in events if isinstance(e, Evaluation) and e.loss is not None]
        target = next((e.target for e in events if isinstance(e, Run)), None)
        points = scores or losses
        axis.set_ylabel("test accuracy" if scores else "test loss")
        algorithm = next(e.algorithm for e in events if isinstance(e, Run))
        # By algorithm, not by run: a prediction has the colour of what it predicts.
        colour = colours.setdefault(algorithm, LINES[len(colours) % len(LINES)])
        style = "--" if len(engines) > 1 and _engine(events) == "virtual" else "-"  # a prediction next to its run
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


def _draw_timeline(axis: Axes, name: str, events: Sequence[Event], end: float) -> None:
    workers = _workers(events)
    groups = next(e.groups for e in events if isinstance(e, Run))
    row = {worker: index for index, worker in enumerate(workers[:MOST_ROWS])}
    bars: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for event in events:
        if isinstance(event, Compute | Load | Wait) and event.t < end and event.who in row:
            bars.setdefault((event.kind, row[event.who]), []).append((event.t, min(event.until, end) - event.t))
        elif isinstance(event, Transfer) and event.t < end:
            who = groups[event.who] if isinstance(event.who, str) else event.who
            # Servers, communicators and workers beyond the last row have none.
            for member in set(who) & set(row):
                span = (event.t, min(event.until, end) - event.t)
                bars.setdefault((event.kind, row[member]), []).append(span)
    for (kind, index), spans in bars.items():
        thin = kind == "transfer"
        place = (index + 0.28, 0.16) if thin else (index - 0.4, 0.8)
        bar = axis.broken_barh(spans, place, facecolors=COLOURS[kind], zorder=3 if thin else 2)
        if kind == "compute":
            bar.set(edgecolor="white", linewidth=0.5)
    updates = [e.t for e in events if isinstance(e, Update) and e.t < end]
    axis.plot(updates, [-0.62] * len(updates), "|", color="#222222", markersize=5, clip_on=False)
    more = len(workers) - len(row)
    axis.set_title(f"{name}{f' (first {len(row)} of {len(workers)} workers)' if more else ''}", loc="left", fontsize=9)
    axis.set_yticks(list(row.values()), list(row), fontsize=7)
    axis.set_ylim(len(row) - 0.4, -0.8)
    axis.set_xlim(0, end)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(axis: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches: list[object] = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    patches.append(Line2D([], [], marker="|", linestyle="", color="#222222", label="update"))
    axis.legend(handles=patches, loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=8)


def _engine(events: Sequence[Event]) -> str:
    return next(event.engine for event in events if isinstance(event, Run))


def _workers(events: Sequence[Event]) -> list[str]:
    return next(list(event.groups["workers"]) for event in events if isinstance(event, Run))


def _window(runs: Sequence[Sequence[Event]]) -> float:
    """How much of the beginning to show: a few updates of the slowest run, all the same."""
    times = []
    for events in runs:
        # One window for all runs, so that lengths can be compared; a run without updates shows all it has.
        updates = [event.t for event in events if isinstance(event, Update)][:UPDATES_SHOWN]
        times.append(updates[-1] if updates else next((e.t for e in events if isinstance(e, End)), 1.0))
    return max(times) or 1.0
