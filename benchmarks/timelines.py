"""The pictures of docs/algorithms: who computes, waits and transfers when, in a few updates of each algorithm.

    python benchmarks/timelines.py

Each is a small run in virtual time, of time alone. Fleets and links are chosen to show the idea, not to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.contract.events import Compute, Event, Load, Run, Transfer, Update, Wait
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, paces
from ownpace.report.figure import COLOURS, _draw_timeline, _legend
from ownpace.report.outline import RunOutline
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "algorithms"
TASK = Quadratic(dimensions=1000)
PARAMETER_BYTES = 4000
UNEVEN = (32.0, 16.0, 8.0, 8.0)
"""Samples per second, 4:2:1:1. A batch of 32 takes 1, 2, 4 and 4 seconds."""


def links(all_reduce_s: float, members: int = 4) -> Network:
    """Links on which the sum of all workers takes that long."""
    return Network(bandwidth_bytes_per_s=2 * (members - 1) / members * PARAMETER_BYTES / all_reduce_s, latency_s=1e-6)


def served(machines: Sequence[Machine], one_way_s: float) -> Fleet:
    """Workers whose pushes and pulls take that long each, and a server that is no bottleneck."""
    network = Network(bandwidth_bytes_per_s=PARAMETER_BYTES / one_way_s, latency_s=1e-6)
    return Fleet(machine=tuple(machines), network=network, server=(ServerMachine(bandwidth_bytes_per_s=1e7),))


def machines(*samples_per_s: float) -> tuple[Machine, ...]:
    return tuple(Machine(samples_per_s=pace) for pace in samples_per_s)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One run, and what to show of it."""

    title: str
    fleet: Fleet
    rows: tuple[str, ...]
    """What to call the workers (and the communicators, where there are any)."""
    until_s: float
    parameters: dict[str, object] = field(default_factory=dict)
    batch_size: int = 32
    micro_batch: int | None = None
    mark: Callable[[Axes, Sequence[Event], float], None] | None = None
    """Draws more than the usual."""


def write(axis: Axes, text: str, t: float, row: float, colour: str) -> None:
    axis.annotate(text, (t, row), color=colour, ha="center", va="center", fontsize=8, zorder=5)


def mark_staleness(axis: Axes, events: Sequence[Event], until_s: float, text: str = "{}", offset: int = 0) -> None:
    """Write the staleness of each update over its mark."""
    for event in events:
        if isinstance(event, Update) and event.t < until_s:
            label = text.format(event.staleness + offset)
            axis.annotate(label, (event.t, -0.72), ha="center", va="bottom", fontsize=7, annotation_clip=False)


def mark_tau(axis: Axes, events: Sequence[Event], until_s: float) -> None:
    mark_staleness(axis, events, until_s, offset=1)


def mark_dropped(axis: Axes, events: Sequence[Event], until_s: float) -> None:
    """Name the batches that came too late: the parameters had gone on before they were there."""
    versions = {event.version: event.t for event in events if isinstance(event, Update)}
    workers = next(event.groups["workers"] for event in events if isinstance(event, Run))
    for event in events:
        if isinstance(event, Compute) and event.until < until_s:
            push = next(e for e in events if isinstance(e, Transfer) and e.t >= event.until and e.who[0] == event.who)
            if versions.get(event.version + 1, push.until) < push.until:
                write(axis, "dropped", (event.t + event.until) / 2, workers.index(event.who), "white")


def mark_halves(axis: Axes, events: Sequence[Event], until_s: float) -> None:
    """Say which batch is which, for the slow workers: theirs are of one micro-batch each."""
    workers = next(event.groups["workers"] for event in events if isinstance(event, Run))
    for row in (2, 3):
        batches = [event for event in events if isinstance(event, Compute) and event.who == workers[row]]
        for number, event in enumerate(batches):
            if event.until < until_s:
                write(axis, "AB"[number % 2], (event.t + event.until) / 2, row, "white")


def mark_collectives(axis: Axes, events: Sequence[Event], until_s: float) -> None:
    """Say what the communicators do."""
    run = next(event for event in events if isinstance(event, Run))
    for event in events:
        if isinstance(event, Transfer) and event.until < until_s:
            assert isinstance(event.who, str)
            for who in run.groups[event.who]:
                if who.startswith("communicator"):
                    row = run.groups["workers"].index(who)
                    text = "sum" if event.what == "all-reduce" else event.what
                    write(axis, text, (event.t + event.until) / 2, row - 0.05, "#222222")


BY_PACE = ("pace 4", "pace 2", "pace 1", "pace 1")
ALIKE = ("worker 0", "worker 1", "worker 2", "worker 3")
RING = paces(*UNEVEN, jitter=0.0, network=links(0.8))
SERVED = served(machines(32, 16, 8, 6), 0.3)
SERVED_PACES = ("pace 4", "pace 2", "pace 1", "pace 0.75")

PICTURES = {
    "pace": Picture(
        title="Pace-SGD: nobody waits; a sum is under way while everybody computes where it should lead",
        fleet=RING,
        rows=BY_PACE,
        until_s=15.5,
        parameters={"max_batch": 0},
    ),
    "sync": Picture(
        title="Sync-SGD: everybody waits for the slowest, then for the sum", fleet=RING, rows=BY_PACE, until_s=15.5
    ),
    "balanced": Picture(
        title="Balanced SGD: after two updates, batches in proportion to pace", fleet=RING, rows=BY_PACE, until_s=15.5
    ),
    "abs": Picture(
        title="ABS-SGD: micro-batches at one's own pace until the sum before is there",
        fleet=RING,
        rows=BY_PACE,
        until_s=13.5,
        micro_batch=16,
    ),
    "acco": Picture(
        title="ACCO: two sums for every update, of a batch A at an estimate and a batch B at the parameters",
        fleet=RING,
        rows=BY_PACE,
        until_s=13.5,
        micro_batch=16,
        mark=mark_halves,
    ),
    "pipe": Picture(
        title="Pipe-SGD: a sum is under way while the next batch is computed",
        fleet=paces(16, 16, 16, 12, jitter=0.0, network=links(1.8)),
        rows=("pace 4", "pace 4", "pace 4", "pace 3"),
        until_s=15.5,
    ),
    "od": Picture(
        title="OD-SGD: two synchronous iterations of warm-up, then push and pull beside the next batch",
        fleet=served(machines(16, 16, 16, 16), 0.9),
        rows=ALIKE,
        until_s=15.5,
        parameters={"warmup": 2},
    ),
    "layered": Picture(
        title="Layered SGD: communicators sum between subgroups while workers load",
        fleet=Fleet(
            machine=tuple(replace(machine, io_s_per_sample=0.05) for machine in machines(16, 16, 16, 16)),
            network=Network(bandwidth_bytes_per_s=PARAMETER_BYTES / 0.6, latency_s=0.2),
        ),
        rows=("group 0", "group 0", "group 1", "group 1", "comm. 0", "comm. 1"),
        until_s=15.5,
        mark=mark_collectives,
    ),
    "grouping": Picture(
        title="Grouping-SGD: three groups of two; over each update, Y",
        fleet=served(machines(34, 32, 17, 16, 8.5, 8), 0.3),
        rows=("fast", "fast", "middle", "middle", "slow", "slow"),
        until_s=12,
        parameters={"groups": "0,1/2,3/4,5"},
        mark=mark_tau,
    ),
    "async": Picture(
        title="Async-SGD: nobody waits for another worker; over each update, its staleness",
        fleet=SERVED,
        rows=SERVED_PACES,
        until_s=12,
        mark=mark_staleness,
    ),
    "stale": Picture(
        title="Stale-SGD with s = 1: nobody runs too far ahead; over each update, its staleness",
        fleet=SERVED,
        rows=SERVED_PACES,
        until_s=17,
        parameters={"staleness": 1},
        mark=mark_staleness,
    ),
    "dc-async": Picture(
        title="DC-ASGD: as Async-SGD; over each update, how many updates its gradient is corrected for",
        fleet=SERVED,
        rows=SERVED_PACES,
        until_s=12,
        mark=mark_staleness,
    ),
    "staleness-aware": Picture(
        title="Staleness-aware Async-SGD: over each update, what the learning rate is divided by",
        fleet=SERVED,
        rows=SERVED_PACES,
        until_s=12,
        mark=mark_tau,
    ),
    "backup": Picture(
        title="Backup workers: an update takes the first three of four gradients",
        fleet=served([Machine(samples_per_s=20, jitter=0.4, count=4)], 0.3),
        rows=ALIKE,
        until_s=13,
        mark=mark_dropped,
    ),
    "local": Picture(
        title="Local SGD, H = 4: everybody takes four steps alone, then models are averaged",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 4},
        batch_size=12,
    ),
    "diloco": Picture(
        title="DiLoCo, H = 8: after a short first round, as many steps as one's pace allows",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 8},
        batch_size=16,
    ),
    "stride": Picture(
        title="Stride: steps all the time; each sum is under way while the next round is made",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        batch_size=16,
    ),
    "cocod": Picture(
        title="CoCoD-SGD, H = 3: batches by pace; each sum is under way while the next round is made",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 3},
        batch_size=6,
    ),
    "overlap-local": Picture(
        title="Overlap-Local-SGD, τ = 4: the sum is hidden, but the fast wait for the slow",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 4},
        batch_size=12,
    ),
    "wp": Picture(
        title="WP-SGD, T = 15: everybody stops when the fastest is done",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 15},
        batch_size=9,
    ),
    "simuparallel": Picture(
        title="SimuParallel SGD in rounds, T = 15: everybody stops when the fastest is done",
        fleet=RING,
        rows=BY_PACE,
        until_s=15,
        parameters={"steps": 15},
        batch_size=9,
    ),
}


def draw(name: str, picture: Picture, path: Path) -> None:
    _, events = simulate(
        make_algorithm(name, picture.parameters),
        picture.fleet,
        batch_size=picture.batch_size,
        micro_batch=picture.micro_batch,
        seconds=1.2 * picture.until_s,
        timing_only=True,
        task=TASK,
    )
    if make_algorithm(name).has_communicators:
        events = with_communicators(events)
    figure = Figure(figsize=(9, 1.3 + 0.3 * len(picture.rows)), layout="constrained")
    axis = figure.subplots()
    _draw_timeline(axis, "", RunOutline(events), picture.until_s)
    if any(isinstance(event, Load) for event in events):
        legend_with_loading(axis)
    else:
        _legend(axis)
    if picture.mark is not None:
        picture.mark(axis, events, picture.until_s)
    figure.suptitle(picture.title, x=0.01, ha="left", fontsize=10)
    axis.set_yticks(range(len(picture.rows)), picture.rows, fontsize=9)
    axis.set_xlabel("seconds", fontsize=9)
    axis.tick_params(labelsize=9)
    figure.savefig(path, dpi=100)


def with_communicators(events: Sequence[Event]) -> list[Event]:
    """The same with a row for each communicator, which only counts as working while it transfers."""
    run = next(event for event in events if isinstance(event, Run))
    rows = [*run.groups["workers"], *run.groups["communicators"]]
    kept = [e for e in events[1:] if not (isinstance(e, Wait) and e.who in run.groups["communicators"])]
    return [replace(run, groups={**run.groups, "workers": rows}), *kept]


def legend_with_loading(axis: Axes) -> None:
    """The usual legend, and loading."""
    _legend(axis)
    legend = axis.get_legend()
    handles = [Patch(color=COLOURS["load"], label="load"), *legend.legend_handles]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=8)


def main() -> None:
    assert PICTURES.keys() == ALGORITHMS.keys(), "one picture for each algorithm"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        draw(name, picture, FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
