"""Local steps that never wait, in a race with schedules: seconds of virtual time to an accuracy, each at its best.

    OWNPACE_DATA=… python benchmarks/stride.py --processes 16 > docs/results/stride.md

MNIST, the MLP with 101,770 parameters, momentum 0.9, cosine. Every algorithm runs with each of several learning rates
and lengths of its schedule, with each seed; a cell is the least mean time over seeds of any of them. What was run is
kept in runs/stride.jsonl, and not run again.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from claims.running import HERE, Outcome, Runner, with_seeds
from ownpace import Config

LEVELS = (0.95, 0.96, 0.97)
SMOOTH = 3
"""An accuracy is reached when so many evaluations in a row have it on average."""
BASE = Config(
    engine="virtual", task="mnist", model="mlp", momentum=0.9, schedule="cosine", eval_every=1500, detail=False
)
FLEETS = ("wan", "mild", "steep", "drift")
LENGTHS: Mapping[str, Sequence[int]] = {
    "wan": (60_000, 90_000, 120_000, 180_000),
    **dict.fromkeys(("mild", "steep", "drift"), (40_000, 60_000, 80_000)),
}
LOCAL_RATES = (0.015, 0.025, 0.04, 0.06, 0.1)
SUM_RATES = (0.03, 0.05, 0.08, 0.12, 0.2)


@dataclass(frozen=True)
class Racer:
    """An algorithm as it takes part."""

    algorithm: str
    rates: Sequence[float]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    batch_sizes: Sequence[int] = (32,)
    micro_batch: int | None = None

    def configs(self, fleet: str) -> list[Config]:
        """Its runs, but for seeds."""
        return [
            replace(
                BASE,
                algorithm=self.algorithm,
                parameters=dict(self.parameters),
                fleet=fleet,
                lr=lr,
                samples=samples,
                batch_size=batch_size,
                micro_batch=self.micro_batch,
            )
            for lr, samples, batch_size in itertools.product(self.rates, LENGTHS[fleet], self.batch_sizes)
        ]


RACERS: dict[str, Racer] = {
    "stride": Racer("stride", LOCAL_RATES, batch_sizes=(16, 32)),
    "stride, outer momentum 0.3": Racer("stride", LOCAL_RATES, {"outer_lr": 0.85, "outer_momentum": 0.3}, (16, 32)),
    "wp": Racer("wp", LOCAL_RATES, batch_sizes=(16, 32)),
    "wp, 64 steps": Racer("wp", LOCAL_RATES, {"steps": 64}),
    "local": Racer("local", LOCAL_RATES, batch_sizes=(16, 32)),
    "local, 32 steps": Racer("local", LOCAL_RATES, {"steps": 32}),
    "diloco": Racer("diloco", LOCAL_RATES, batch_sizes=(16, 32)),
    "diloco, plain outer step": Racer("diloco", LOCAL_RATES, {"outer_lr": 1.0, "outer_momentum": 0.0}),
    "pace": Racer("pace", SUM_RATES, batch_sizes=(16, 32), micro_batch=8),
    "acco": Racer("acco", SUM_RATES, micro_batch=8),
    "balanced": Racer("balanced", SUM_RATES, batch_sizes=(16, 32)),
}
RACERS_OF_OTHERS: Mapping[str, Racer] = {
    "cocod": Racer("cocod", LOCAL_RATES, batch_sizes=(16, 32)),
    "cocod, 32 steps": Racer("cocod", LOCAL_RATES, {"steps": 32}),
    "overlap-local": Racer("overlap-local", LOCAL_RATES, batch_sizes=(16, 32)),
    "overlap-local, 32 steps": Racer("overlap-local", LOCAL_RATES, {"steps": 32}),
}
RACERS |= RACERS_OF_OTHERS
TRANSFER_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)
TRANSFER: Mapping[str, tuple[str, str, int]] = {
    "`sync`, four alike": ("sync", "uniform", 128),
    "`stride`, four alike": ("stride", "uniform", 128),
    "`stride`, `mild`": ("stride", "mild", 96),
    "`stride`, `wan`": ("stride", "wan", 64),
    "`stride`, `steep`": ("stride", "steep", 60),
}
"""Algorithm, fleet, and the samples of one step of all workers: batch size · Σ v / v_max."""
ALONE = ("wp", "local", "diloco")
"""Whom `stride` is to beat where communication dominates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1, help="runs at once")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--racers", default=";".join(RACERS), help="some of them, with semicolons between")
    options = parser.parse_args()
    runner = Runner(options.processes, "cpu", HERE / "runs" / "stride.jsonl")
    seeds, racers = range(options.seeds), options.racers.split(";")
    fleets = [fleet for fleet in options.fleets.split(",") if fleet]
    for fleet in fleets:
        configs = [each for name in racers for each in RACERS[name].configs(fleet)]
        runner.run([run for config in configs for run in with_seeds(config, seeds)], fleet)
    runner.run([run for row in TRANSFER for config in transfer(row) for run in with_seeds(config, seeds)], "rates")
    print_page(runner, racers, fleets, seeds)
    print_transfer(runner, seeds)


def transfer(row: str) -> list[Config]:
    """Runs at each rate."""
    algorithm, fleet, _ = TRANSFER[row]
    base = replace(BASE, algorithm=algorithm, fleet=fleet, samples=72_000, batch_size=32)
    return [replace(base, lr=lr) for lr in TRANSFER_RATES]


def print_transfer(runner: Runner, seeds: Sequence[int]) -> None:
    """Which learning rate goes with which fleet."""
    print("## Which learning rate\n\nFinal accuracy after 72,000 samples, batches of 32:\n")
    print(f"| | samples of a step of all | {' | '.join(f'lr {lr:g}' for lr in TRANSFER_RATES)} |")
    print(f"|---|---|{'---|' * len(TRANSFER_RATES)}")
    for row, (_, _, samples) in TRANSFER.items():
        ends = [statistics.mean(runner.of(run).final(3) for run in with_seeds(each, seeds)) for each in transfer(row)]
        cells = [f"**{end:.1%}**" if end == max(ends) else f"{end:.1%}" for end in ends]
        print(f"| {row} | {samples} | {' | '.join(cells)} |")


def print_page(runner: Runner, racers: Sequence[str], fleets: Sequence[str], seeds: Sequence[int]) -> None:
    """All tables, as Markdown."""
    print("# Local steps that never wait\n")
    print(
        "Seconds of virtual time until the test accuracy of MNIST's MLP was reached (mean of three evaluations),\n"
        "with momentum 0.9 and a cosine schedule, at the best of several learning rates, batch sizes and lengths of\n"
        f"the schedule for each algorithm; means over {len(seeds)} seeds. *Of the limit*: samples per second, over\n"
        "the sum of all machines'. Made by `python benchmarks/stride.py`, which says what was tried.\n"
    )
    for fleet in fleets:
        print(f"## `{fleet}`\n\n{heading()}")
        times = {name: [best(runner, RACERS[name].configs(fleet), seeds, level) for level in LEVELS] for name in racers}
        for name in racers:
            print(f"| {name} | {' | '.join(shown(found) for found in times[name])} | {limit(runner, times[name])} |")
        print(f"\n{verdict(times)}\n")


def heading() -> str:
    levels = " | ".join(f"{level:.0%}" for level in LEVELS)
    return f"| algorithm | {levels} | of the limit |\n|---|{'---|' * (len(LEVELS) + 1)}"


Found = tuple[float, Config] | None


def best(runner: Runner, configs: Sequence[Config], seeds: Sequence[int], level: float) -> Found:
    """The least mean time over seeds, and how; None: nobody got there with every seed."""
    found: Found = None
    for config in configs:
        times = [reached_s(runner.of(run), level) for run in with_seeds(config, seeds)]
        known = [time for time in times if time is not None]
        if len(known) == len(times) and (found is None or statistics.mean(known) < found[0]):
            found = statistics.mean(known), config
    return found


def reached_s(outcome: Outcome, level: float) -> float | None:
    """Seconds until the mean of some evaluations was at the level; between two of them, on a straight line."""
    points = [(t, score) for t, _, score, _ in outcome.curve if t is not None and score is not None]
    before_s, before = 0.0, 0.0
    t: float
    for end in range(1, len(points) + 1):
        mean = statistics.mean(score for _, score in points[max(0, end - SMOOTH) : end])
        t = points[end - 1][0]
        if mean >= level:
            return before_s + (t - before_s) * (level - before) / (mean - before)
        before_s, before = t, mean
    return None


def shown(found: Found) -> str:
    if found is None:
        return "–"
    config = found[1]
    return f"{found[0]:.2f} (lr {config.lr:g}, batch {config.batch_size}, {config.samples or 0:,} samples)"


def limit(runner: Runner, found: Sequence[Found]) -> str:
    reached = [each for each in found if each is not None]
    return f"{runner.of(reached[-1][1]).share_of_limit:.2f}" if reached else "–"


def verdict(times: Mapping[str, Sequence[Found]]) -> str:
    """How much sooner than the best others."""
    ours = [name for name in times if name.startswith("stride")]

    def least(names: Sequence[str], index: int) -> float | None:
        return min((found[0] for name in names if (found := times[name][index]) is not None), default=None)

    lines = []
    for index, level in enumerate(LEVELS):
        mine = least(ours[:1], index)
        alone = least([name for name in times if name.split(",")[0] in ALONE], index)
        others = least([name for name in times if name not in ours], index)
        if mine is not None and alone is not None and others is not None:
            lines.append(
                f"{level:.0%}: {alone / mine:.2f} times the best of wp, local, diloco; {others / mine:.2f} of all"
            )
    return "`stride` is as fast as, at " + "; at ".join(lines) + "." if lines else ""


if __name__ == "__main__":
    main()
