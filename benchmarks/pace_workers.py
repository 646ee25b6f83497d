"""Where `pace` stops being a good choice as fleets grow: 4, 16, 64 workers, beside `balanced` and `stride`.

    OWNPACE_DATA=… python benchmarks/pace_workers.py --processes 16

MNIST, the MLP with 101,770 parameters, momentum 0.9, cosine, batches of 32 a worker, paces 4:2:1:1 in equal numbers; in
virtual time, with as many samples for all. Each at the best of several learning rates. `pace` as it is, with its bound
on the samples of an update; without; and with as many as 4 workers have.

Then what is stable: a quadratic of curvature 1, workers that are all alike (every sample has the same gradient), and
workers that are not; the largest learning rate at which 400 updates still come to rest. The race's runs are kept in
runs/pace_workers.jsonl, and not run again.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from claims.running import HERE, Runner, with_seeds
from ownpace import Config, make_algorithm
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import Job, run_virtual
from ownpace.fleet import Fleet, Machine, Network
from ownpace.tasks import Quadratic
from table import print_table

BATCH = 32
WORKERS = (4, 16, 64)
MOST_ALIKE = 16
"""More workers than that change nothing about what is stable."""
PACES = (4, 2, 1, 1)
RATES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
BASE = Config(
    engine="virtual", task="mnist", model="mlp", momentum=0.9, schedule="cosine", eval_every=3000, detail=False,
    batch_size=BATCH,
)  # fmt: skip


@dataclass(frozen=True)
class Racer:
    """An algorithm as it takes part."""

    algorithm: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def configs(self, num_workers: int, samples: int) -> list[Config]:
        """Its runs, but for seeds."""
        fleet = ",".join(f"{pace}" for pace in PACES * (num_workers // len(PACES)))
        base = replace(BASE, algorithm=self.algorithm, parameters=dict(self.parameters), fleet=fleet, samples=samples)
        return [replace(base, lr=lr) for lr in RATES]


RACERS: dict[str, Racer] = {
    "`balanced`": Racer("balanced"),
    "`stride`": Racer("stride"),
    "`pace`": Racer("pace"),
    "`pace`, no bound": Racer("pace", {"max_batch": 0}),
    "`pace`, 128 samples": Racer("pace", {"target_batch": 4 * BATCH}),
}


def race(runner: Runner, workers: Sequence[int], samples: int, seeds: Sequence[int]) -> None:
    """Final accuracy, time and samples of an update, at the best rate."""
    configs = [c for racer in RACERS.values() for number in workers for c in racer.configs(number, samples)]
    runner.run([run for config in configs for run in with_seeds(config, seeds)], "race")
    rows = []
    for number in workers:
        for name, racer in RACERS.items():
            runs = {c.lr: [runner.of(run) for run in with_seeds(c, seeds)] for c in racer.configs(number, samples)}
            ends = {lr: statistics.mean(each.final(3) for each in outcomes) for lr, outcomes in runs.items()}
            best = max(ends, key=lambda lr: ends[lr])
            outcomes = runs[best]
            seconds, size = (
                statistics.mean(values)
                for values in zip(*((each.seconds, each.samples / each.updates) for each in outcomes), strict=True)
            )
            row = f"{number}", name, f"{ends[best]:.1%}", f"{best:g}", f"{seconds:.2f} s", f"{size:,.0f}"
            rows.append((*row, f"{statistics.mean(each.share_of_limit for each in outcomes):.2f}"))
    heads = ("workers", "algorithm", "final accuracy", "lr", "time", "samples an update", "of the limit")
    print(f"{samples:,} samples, {len(seeds)} seeds:\n")
    print_table(heads, rows)


def settles(rate: float, num_workers: int, spread: float, momentum: float) -> bool:
    """Whether `pace` comes to rest on a quadratic of curvature 1 at this rate, its samples so far apart."""
    machines = (Machine(samples_per_s=1000, count=num_workers),)
    losses: list[float] = []

    def emit(event) -> None:
        if event.kind == "evaluation":
            losses.append(math.inf if event.loss is None else event.loss)

    job = Job(
        algorithm=make_algorithm("pace", {"max_batch": 0, "micro": "fixed"}),
        task=Quadratic(dimensions=32, num_samples=4096, noise=spread),
        # Sums take next to no time: each batch is one micro-batch, one update late.
        fleet=Fleet(machine=machines, network=Network(bandwidth_bytes_per_s=1e12, latency_s=1e-6)),
        optimizer=OptimizerSpec(lr=rate, momentum=momentum),
        batch_size=8,
        samples=8 * num_workers * 400,
        eval_every=8 * num_workers * 20,
        detail=False,
    )
    outcome = run_virtual(job, emit)
    return outcome.error is None and math.isfinite(losses[-1]) and losses[-1] < 2 * min(losses[: len(losses) // 2])


def largest(num_workers: int, spread: float, momentum: float) -> float:
    """The largest rate that still settles, to a hundredth, by bisection."""
    low, high = 0.05, 8.0
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if settles(middle, num_workers, spread, momentum) else (low, middle)
    return low


def stability(workers: Sequence[int]) -> None:
    """The largest stable η·a, by the number of workers and by whether they are alike."""
    rows = []
    for momentum in (0.0, 0.9):
        for number in workers:
            found = [largest(number, spread, momentum) for spread in (0.0, 1.0)]
            rows.append((f"{momentum:g}", f"{number}", *(f"{rate:.2f}" for rate in found)))
    print("\nLargest η·a at which `pace` comes to rest:\n")
    print_table(("μ", "workers", "all alike", "with noise"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=150_000)
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), help="multiples of four, with commas between")
    options = parser.parse_args()
    torch.set_num_threads(1)
    workers = [int(number) for number in options.workers.split(",")]
    race(
        Runner(options.processes, "cpu", HERE / "runs" / "pace_workers.jsonl"),
        workers,
        options.samples,
        range(options.seeds),
    )
    stability([number for number in (1, *workers) if number <= MOST_ALIKE])


if __name__ == "__main__":
    main()
