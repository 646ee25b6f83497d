"""Prediction against measurement: samples/s and updates/s in virtual time, and on four real processes.

    python benchmarks/agreement.py [--batch 128] [--seconds 6]

The processes keep the paces that the fleet prescribes; their network is what this machine has. So that is measured
first, in one run of `sync` and one of `async` (how long a sum over four takes after the last has come; how long a push
and its answer take beside computing), and given to the virtual engine. Every algorithm is then predicted and measured
on `uniform`, `mild` and `steep`.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import pairwise

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.contract.events import Compute, Event, Transfer
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import ENGINES, Job
from ownpace.fleet import PRESETS, Fleet, Network
from ownpace.report import Summary, summarize
from ownpace.tasks import Digits
from table import print_table

FLEETS = ("uniform", "mild", "steep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    latency_s = {
        False: sum_latency_s(run("process", "sync", PRESETS["uniform"][1], options.batch, 3.0)),
        True: message_latency_s(run("process", "async", PRESETS["uniform"][1], options.batch, 3.0)),
    }
    print(f"latency: {latency_s[False] * 1000:.2f} ms in sums, {latency_s[True] * 1000:.2f} ms in messages\n")
    rows, worst = [], 0.0
    for name in ALGORITHMS:
        has_servers = make_algorithm(name).has_servers
        for fleet_name in FLEETS:
            fleet = PRESETS[fleet_name][1]
            here = replace(fleet, network=Network(bandwidth_bytes_per_s=1e9, latency_s=latency_s[has_servers]))
            predicted = summarize(run("virtual", name, here, options.batch, options.seconds))
            measured = summarize(run("process", name, fleet, options.batch, options.seconds))
            off = [rate(measured) / rate(predicted) - 1 for rate in (samples_per_s, updates_per_s)]
            worst = max(worst, *map(abs, off))
            rows.append(
                (
                    name,
                    fleet_name,
                    f"{samples_per_s(predicted):,.0f}",
                    f"{samples_per_s(measured):,.0f}",
                    f"{off[0]:+.1%}",
                    f"{updates_per_s(predicted):.1f}",
                    f"{updates_per_s(measured):.1f}",
                    f"{off[1]:+.1%}",
                )
            )
    heads = ("algorithm", "fleet", "samples/s predicted", "measured", "off", "updates/s predicted", "measured", "off")
    print_table(heads, rows)
    print(f"\nworst: {worst:.1%}")


def run(engine: str, name: str, fleet: Fleet, batch: int, seconds: float) -> list[Event]:
    events: list[Event] = []
    job = Job(
        algorithm=make_algorithm(name),
        task=Digits(),
        fleet=fleet,
        optimizer=OptimizerSpec(lr=0.02),
        batch_size=batch,
        seconds=seconds,
        eval_every=10**9,
    )
    ENGINES[engine](job, events.append, None)
    return events


def sum_latency_s(events: list[Event]) -> float:
    """Of one hop, so that the ring of 2 (4 - 1) takes as long as the sums did on average."""
    took = [event.until - event.t for event in events if isinstance(event, Transfer)]
    return statistics.mean(took) / 6


def message_latency_s(events: list[Event]) -> float:
    """Of one message, so that two take as long as a worker is away between two gradients on average."""
    gaps = []
    for worker in ("worker-0", "worker-1", "worker-2", "worker-3"):
        spans = sorted((e.t, e.until) for e in events if isinstance(e, Compute) and e.who == worker)
        gaps += [after[0] - before[1] for before, after in pairwise(spans)]
    return statistics.mean(gaps) / 2


def samples_per_s(summary: Summary) -> float:
    return summary.samples_per_s


def updates_per_s(summary: Summary) -> float:
    return summary.updates / summary.seconds


if __name__ == "__main__":
    main()
