"""Prediction against measurement: samples/s, updates/s and time to a target, in virtual time and on real processes.

    python benchmarks/agreement.py [--batch 128] [--seconds 6]            rates, on uniform, mild and steep
    python benchmarks/agreement.py --target 0.96 [--seeds 3] [--batch 32] time to the target, on examples/laptop.toml

The processes keep the paces that the fleet prescribes; the rest is what this machine has. So that is measured first, in
three runs on four equal workers, and given to the virtual engine:

    alone      how long a sum takes after the last has come, where nobody computes meanwhile (a run of sync)
    beside     the same where all compute: with this latency a run of abs in small pieces is predicted to make as many
               updates as it made. It is longer, since the threads that sum share the cores with those that compute
    messages   how long a push and its answer take beside computing (a run of async)
    s_per_batch, s_per_update    what passes between two micro-batches, and how much more around an update (abs again)

Nothing is measured on the algorithm that is then predicted, but for these three.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.contract.events import Compute, Event, Transfer, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import ENGINES, Job
from ownpace.fleet import PRESETS, Fleet, Network, read_fleet
from ownpace.report import Summary, summarize
from ownpace.tasks import Digits
from table import print_table

FLEETS = ("uniform", "mild", "steep")
LAPTOP = Path(__file__).parent.parent / "examples" / "laptop.toml"
OVERLAPPING = ("abs", "pace", "acco", "pipe")
"""Their sums run beside computing; od's too, but through servers."""
EPOCHS = 28
WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")


@dataclass(frozen=True)
class Costs:
    """What this machine takes besides computing."""

    alone_s: float
    beside_s: float
    message_s: float
    s_per_batch: float
    s_per_update: float

    def fleet(self, name: str, fleet: Fleet) -> Fleet:
        """The fleet as it is here, for one algorithm."""
        has_servers = make_algorithm(name).has_servers
        latency_s = self.message_s if has_servers else self.beside_s if name in OVERLAPPING else self.alone_s
        machines = [
            replace(machine, s_per_batch=self.s_per_batch, s_per_update=self.s_per_update) for machine in fleet.machine
        ]
        network = Network(bandwidth_bytes_per_s=1e9, latency_s=latency_s)
        return replace(fleet, machine=tuple(machines), network=network)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, help="default: 128; with a target 32")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--target", type=float, help="measure the time to this accuracy instead of rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    options = parser.parse_args()
    names = options.algorithms.split(",")
    batch = options.batch or (128 if options.target is None else 32)
    costs = measure_costs(batch, min(3.0, options.seconds))
    print(
        f"latency: {costs.alone_s * 1000:.2f} ms in sums, {costs.beside_s * 1000:.2f} ms in sums beside computing, "
        f"{costs.message_s * 1000:.2f} ms in messages; {costs.s_per_batch * 1000:.2f} ms per micro-batch, "
        f"{costs.s_per_update * 1000:.2f} ms per update\n"
    )
    if options.target is None:
        compare_rates(names, costs, batch, options.seconds)
    else:
        compare_times(names, costs, batch, options.target, range(options.seeds))


def compare_rates(names: Sequence[str], costs: Costs, batch: int, seconds: float) -> None:
    rows, worst = [], 0.0
    for name in names:
        for fleet_name in FLEETS:
            fleet = PRESETS[fleet_name][1]
            predicted = summarize(run("virtual", name, costs.fleet(name, fleet), batch, seconds=seconds))
            measured = summarize(run("process", name, fleet, batch, seconds=seconds))
            cells = []
            for of, digits in ((samples_per_s, ",.0f"), (updates_per_s, ".1f")):
                off = of(measured) / of(predicted) - 1
                worst = max(worst, abs(off))
                cells += [f"{of(predicted):{digits}}", f"{of(measured):{digits}}", f"{off:+.1%}"]
            rows.append((name, fleet_name, *cells))
    heads = ("algorithm", "fleet", "samples/s predicted", "measured", "off", "updates/s predicted", "measured", "off")
    print_table(heads, rows)
    print(f"\nworst: {worst:.1%}")


def compare_times(names: Sequence[str], costs: Costs, batch: int, target: float, seeds: Sequence[int]) -> None:
    """Means over the seeds: of one seed, a time to a target jumps by an evaluation or two."""
    fleet, rows, worst = read_fleet(str(LAPTOP)), [], 0.0
    for name in names:
        here = costs.fleet(name, fleet)
        ways = {
            engine: [summarize(run(engine, name, there, batch, seed=seed, target=target)) for seed in seeds]
            for engine, there in (("virtual", here), ("process", fleet))
        }
        times = {engine: [summary.time_to_target for summary in runs] for engine, runs in ways.items()}
        rates = [f"{statistics.mean(map(updates_per_s, runs)):.1f}" for runs in ways.values()]
        if None in times["virtual"] or None in times["process"]:
            reached = [f"{sum(time is not None for time in some)} of {len(seeds)} seeds" for some in times.values()]
            rows.append((name, *reached, "–", *rates))
            continue
        predicted, measured = (statistics.mean(time for time in some if time is not None) for some in times.values())
        off = measured / predicted - 1
        worst = max(worst, abs(off))
        rows.append((name, f"{predicted:.2f} s", f"{measured:.2f} s", f"{off:+.1%}", *rates))
    heads = (f"time to {target:.0%}", "predicted", "measured", "off", "updates/s predicted", "measured")
    print_table(heads, rows)
    print(f"\nworst: {worst:.1%}")


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
    """The events of one run: of so many seconds, or of the demo's length, to see when the target is reached."""
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
        eval_every=10**9 if target is None else None,
        seed=seed,
    )
    ENGINES[engine](job, events.append, None)
    return events


def measure_costs(batch: int, seconds: float) -> Costs:
    uniform = PRESETS["uniform"][1]
    small = max(1, batch // 8)
    alone = run("process", "sync", uniform, batch, seconds=seconds)
    messages = run("process", "async", uniform, batch, seconds=seconds)
    pieces = run("process", "abs", uniform, batch, seconds=seconds, micro_batch=small)
    s_per_batch, s_per_update = fixed_costs(pieces)
    without = Costs(0.0, 0.0, message_latency_s(messages, s_per_batch), s_per_batch, s_per_update)
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


def samples_per_s(summary: Summary) -> float:
    return summary.samples_per_s


def updates_per_s(summary: Summary) -> float:
    return summary.updates / summary.seconds


if __name__ == "__main__":
    main()
