"""Prediction against measurement: samples/s, updates/s and time to a target, in virtual time and on real processes.

    python benchmarks/agreement.py [--batch 128] [--seconds 6]            rates, on uniform, mild and steep
    python benchmarks/agreement.py --target 0.96 [--seeds 3] [--batch 32] time to the target, on examples/laptop.toml

Nothing else should run meanwhile. With --kept FILE, every run is kept as a line of JSON as soon as it has ended, and a
second start goes on where the first was; --limit 600 begins no run after so many seconds.

The processes keep the paces that the fleet prescribes; the rest is what this machine has. So that is measured first, in
four runs on four equal workers, and given to the virtual engine:

    alone      how long a sum takes after the last has come, where nobody computes meanwhile (a run of sync)
    beside     the same where all compute: with this latency a run of abs in small pieces is predicted to make as many
               updates as it made. It is longer, since the threads that sum share the cores with those that compute
    messages   how long a push and its answer take beside computing (a run of async)
    s_per_batch, s_per_update    what passes between two micro-batches, and how much more around an update (abs again)
    s_per_local_step    the same around a step that is a worker's own, where no sum ends beside it (a run of local)

Nothing is measured on the algorithm that is then predicted, but for these four.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.contract.errors import DivergenceError
from ownpace.core.contract.events import Compute, Event, Transfer, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import ENGINES, Job
from ownpace.fleet import PRESETS, Fleet, Network, read_fleet
from ownpace.report import Summary, summarize
from ownpace.tasks import Digits
from table import print_table

FLEETS = ("uniform", "mild", "steep")
LAPTOP = Path(__file__).parent.parent / "examples" / "laptop.toml"
OVERLAPPING = ("abs", "pace", "acco", "pipe", "stride", "cocod", "overlap-local")
"""Their sums run beside computing; od's too, but through servers."""
LOCAL = ("local", "diloco", "wp", "simuparallel", "stride", "cocod", "overlap-local")
"""Most of their optimizer steps are a worker's own."""
EPOCHS = 40
EVAL_EVERY = 500
"""With a target: often, since a time to it is known no better."""
EASIER = {"abs": 0.9, "acco": 0.85, "diloco": 0.94}
"""They do not get to 96 % here, or not with every seed; a lower target than the one that is asked for."""
WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")


@dataclass(frozen=True)
class Costs:
    """What this machine takes besides computing."""

    alone_s: float
    beside_s: float
    message_s: float
    s_per_batch: float
    s_per_update: float
    s_per_local_step: float

    def fleet(self, name: str, fleet: Fleet) -> Fleet:
        """The fleet as it is here, for one algorithm."""
        has_servers = make_algorithm(name).has_servers
        latency_s = self.message_s if has_servers else self.beside_s if name in OVERLAPPING else self.alone_s
        s_per_update = self.s_per_local_step if name in LOCAL else self.s_per_update
        machines = [
            replace(machine, s_per_batch=self.s_per_batch, s_per_update=s_per_update) for machine in fleet.machine
        ]
        network = Network(bandwidth_bytes_per_s=1e9, latency_s=latency_s)
        return replace(fleet, machine=tuple(machines), network=network)


@dataclass(frozen=True)
class Figures:
    """What is compared of a run."""

    samples_per_s: float
    updates_per_s: float
    time_to_target: float | None


class OutOfTime(Exception):
    """A run was to begin after the limit."""


class RunFailed(Exception):
    """A run did not come to its end; it is not kept, so that another start makes it again."""


class Notebook:
    """Runs that were made, in a file if there is one; each is made once."""

    def __init__(self, path: Path | None, limit_s: float) -> None:
        self._path = path
        self._until = time.monotonic() + limit_s
        self._known: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            entry = json.loads(line)
            self._known[entry["what"]] = entry["found"]

    def note(self, what: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found before, or is found now.

        Raises:
            OutOfTime: It is too late to begin.
        """
        if what not in self._known:
            if time.monotonic() > self._until:
                raise OutOfTime
            self._known[what] = make()
            if self._path is not None:
                with self._path.open("a") as kept:
                    kept.write(json.dumps({"what": what, "found": self._known[what]}) + "\n")
        return self._known[what]

    def figures(self, engine: str, name: str, fleet: Fleet, batch: int, **how: Any) -> Figures:
        """Of one run."""
        what = f"{engine}, {name}, {fleet}, batch {batch}, {how}"
        return Figures(**self.note(what, lambda: asdict(figures(run(engine, name, fleet, batch, **how)))))

    def costs(self, batch: int, seconds: float) -> Costs:
        """What this machine takes besides computing, as it was when the file was begun."""
        return Costs(**self.note(f"costs, batch {batch}", lambda: asdict(measure_costs(batch, seconds))))


def figures(events: list[Event]) -> Figures:
    summary = summarize(events)
    return Figures(summary.samples_per_s, updates_per_s(summary), summary.time_to_target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, help="default: 128; with a target 32")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--target", type=float, help="measure the time to this accuracy instead of rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--kept", type=Path, help="a file for runs that were made")
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin no run after so many seconds")
    options = parser.parse_args()
    batch = options.batch or (128 if options.target is None else 32)
    notebook = Notebook(options.kept, options.limit)
    costs = notebook.costs(batch, min(3.0, options.seconds))
    print(
        f"latency: {costs.alone_s * 1000:.2f} ms in sums, {costs.beside_s * 1000:.2f} ms in sums beside computing, "
        f"{costs.message_s * 1000:.2f} ms in messages; {costs.s_per_batch * 1000:.2f} ms per micro-batch, "
        f"{costs.s_per_update * 1000:.2f} ms per update, {costs.s_per_local_step * 1000:.2f} ms per local step\n"
    )
    rows: list[tuple[str, ...]] = []
    worst: dict[str, float] = {}
    compare = Comparison(notebook, costs, batch, rows, worst)
    with contextlib.suppress(OutOfTime):  # the table of what there is
        for name in options.algorithms.split(","):
            try:
                if options.target is None:
                    compare.rates(name, options.seconds)
                else:
                    compare.times(name, options.target, range(options.seeds))
            except RunFailed as error:
                print(error, file=sys.stderr)
    print_table(RATE_HEADS if options.target is None else TIME_HEADS, rows)
    print("\nworst: " + ", ".join(f"{what} {off:.1%}" for what, off in worst.items()))


RATE_HEADS = ("algorithm", "fleet", "samples/s predicted", "measured", "off", "updates/s predicted", "measured", "off")
TIME_HEADS = (
    *("time to the target", "s predicted", "measured", "off"),
    *("samples/s predicted", "measured", "off", "updates/s predicted", "measured", "off"),
)


@dataclass(frozen=True)
class Comparison:
    """Predicted beside measured, row by row."""

    notebook: Notebook
    costs: Costs
    batch: int
    rows: list[tuple[str, ...]]
    worst: dict[str, float]

    def rates(self, name: str, seconds: float) -> None:
        """On three presets."""
        for fleet_name in FLEETS:
            fleet = PRESETS[fleet_name][1]
            predicted = self.notebook.figures(
                "virtual", name, self.costs.fleet(name, fleet), self.batch, seconds=seconds
            )
            measured = self.notebook.figures("process", name, fleet, self.batch, seconds=seconds)
            self.rows.append((name, fleet_name, *self._both([predicted], [measured])))

    def times(self, name: str, target: float, seeds: Sequence[int]) -> None:
        """Means over the seeds: of one seed, a time to a target jumps by an evaluation or two."""
        fleet, target = read_fleet(str(LAPTOP)), min(target, EASIER.get(name, 1.0))
        here = self.costs.fleet(name, fleet)
        predicted, measured = (
            [self.notebook.figures(engine, name, there, self.batch, seed=seed, target=target) for seed in seeds]
            for engine, there in (("virtual", here), ("process", fleet))
        )
        some = [[each.time_to_target for each in runs] for runs in (predicted, measured)]
        if any(None in times for times in some):
            cells = [*(f"{sum(time is not None for time in times)} of {len(seeds)} seeds" for times in some), "–"]
        else:
            means = [statistics.mean(time for time in times if time is not None) for times in some]
            cells = self._beside("time to target", *means, ".2f")
        self.rows.append((f"{name}, {target:.0%}", *cells, *self._both(predicted, measured)))

    def _both(self, predicted: Sequence[Figures], measured: Sequence[Figures]) -> list[str]:
        cells = []
        for what, digits in (("samples_per_s", ",.0f"), ("updates_per_s", ".1f")):
            means = [statistics.mean(getattr(each, what) for each in runs) for runs in (predicted, measured)]
            cells += self._beside(what.replace("_per_", "/"), *means, digits)
        return cells

    def _beside(self, what: str, predicted: float, measured: float, digits: str) -> list[str]:
        off = measured / predicted - 1
        self.worst[what] = max(self.worst.get(what, 0.0), abs(off))
        return [f"{predicted:{digits}}", f"{measured:{digits}}", f"{off:+.1%}"]


def run(
    engine: str,
    name: str,
    fleet: Fleet,
    batch: int,
    *,
    seconds: float | None = None,
    target: float | None = None,
    seed: int = 0,
    micro_batch: int | None = None,
) -> list[Event]:
    """The events of one run: of so many seconds, or long enough to see when the target is reached."""
    events: list[Event] = []
    job = Job(
        # Of a short run, the usual warm-up would be almost all.
        algorithm=make_algorithm(name, {"warmup": 20} if name == "od" else None),
        task=Digits(),
        fleet=fleet,
        optimizer=OptimizerSpec(lr=0.02, momentum=0.0 if target is None else 0.9),
        batch_size=batch,
        micro_batch=micro_batch,
        seconds=seconds,
        samples=None if target is None else EPOCHS * len(Digits().train_samples()),
        target=target,
        stop_at_target=target is not None,
        eval_every=10**9 if target is None else EVAL_EVERY,
        seed=seed,
    )
    outcome = ENGINES[engine](job, events.append, None)
    if outcome.error is not None and not isinstance(outcome.error, DivergenceError):
        raise RunFailed(f"{engine}, {name}: {outcome.reason}")
    return events


def measure_costs(batch: int, seconds: float) -> Costs:
    uniform = PRESETS["uniform"][1]
    small = max(1, batch // 8)
    alone = run("process", "sync", uniform, batch, seconds=seconds)
    messages = run("process", "async", uniform, batch, seconds=seconds)
    pieces = run("process", "abs", uniform, batch, seconds=seconds, micro_batch=small)
    s_per_batch, s_per_update = fixed_costs(pieces)
    between = [max(0.0, end - begin) for begin, end in gaps(run("process", "local", uniform, batch, seconds=seconds))]
    s_per_local_step = max(0.0, statistics.median(between) - s_per_batch)
    message_s = message_latency_s(messages, s_per_batch)
    without = Costs(0.0, 0.0, message_s, s_per_batch, s_per_update, s_per_local_step)
    beside_s = latency_of(updates_per_s(summarize(pieces)), without, batch, small, seconds)
    return replace(without, alone_s=sum_latency_s(alone), beside_s=beside_s)


def latency_of(updates: float, costs: Costs, batch: int, small: int, seconds: float) -> float:
    """The latency with which abs is predicted to make this many updates per second: more latency, fewer updates."""
    low, high = 0.0, 0.05
    for _ in range(12):
        middle = (low + high) / 2
        here = replace(costs, beside_s=middle).fleet("abs", PRESETS["uniform"][1])
        predicted = summarize(run("virtual", "abs", here, batch, seconds=seconds, micro_batch=small))
        low, high = (middle, high) if updates_per_s(predicted) > updates else (low, middle)
    return (low + high) / 2


def fixed_costs(events: list[Event]) -> tuple[float, float]:
    """What passes between two micro-batches, and how much more where an update is made in between: medians."""
    updates = sorted(event.t for event in events if isinstance(event, Update))
    plain, around = [], []
    for begin, end in gaps(events):
        made = any(begin <= moment <= end for moment in updates)
        (around if made else plain).append(max(0.0, end - begin))
    s_per_batch = statistics.median(plain) if plain else 0.0
    return s_per_batch, max(0.0, statistics.median(around) - s_per_batch) if around else 0.0


def sum_latency_s(events: list[Event]) -> float:
    """Of one hop, so that the ring of 2 (4 - 1) takes as long as the sums did on average."""
    took = [event.until - event.t for event in events if isinstance(event, Transfer)]
    return statistics.mean(took) / 6


def message_latency_s(events: list[Event], s_per_batch: float) -> float:
    """Of one message, so that two, and the beginning of a batch, take as long as a worker is away on average."""
    return max(0.0, statistics.mean(end - begin for begin, end in gaps(events)) - s_per_batch) / 2


def gaps(events: list[Event]) -> list[tuple[float, float]]:
    """From when until when workers did not compute, between two gradients."""
    found = []
    for worker in WORKERS:
        spans = sorted((e.t, e.until) for e in events if isinstance(e, Compute) and e.who == worker)
        found += [(before[1], after[0]) for before, after in pairwise(spans)]
    return found


def updates_per_s(summary: Summary) -> float:
    return summary.updates / summary.seconds if summary.seconds else 0.0


if __name__ == "__main__":
    main()
