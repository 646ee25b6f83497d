"""Several ways of training race to a target accuracy, each at its own best learning rate."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from claims.running import Runner, describe, with_seeds
from ownpace import Config
from ownpace.fleet import Fleet

Way = tuple[str, Mapping[str, Any]]
"""An algorithm and its parameters."""


@dataclass(frozen=True)
class Race:
    """One fleet, one task, one optimizer, and who takes part."""

    name: str
    fleet: str | Fleet
    base: Config
    ways: Mapping[str, Way]
    """Label → algorithm and parameters."""
    lrs: Sequence[float]
    seeds: Sequence[int] = (0, 1, 2)
    lrs_of: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Other learning rates for some."""
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    """Of those that do not have the batch size."""
    levels: Sequence[float] = (0.96, 0.97)
    """The accuracies whose times are taken; a run ends at its target, the highest of them."""

    def configs(self, label: str, seed: int = 0) -> list[Config]:
        """One run for each learning rate."""
        base = replace(on_its_way(self, label), seed=seed)
        return [replace(base, lr=lr) for lr in self.lrs_of.get(label, self.lrs)]

    def every(self) -> list[Config]:
        """All runs of the first seed: they choose the learning rates."""
        return [config for label in self.ways for config in self.configs(label)]

    def chosen(self, runner: Runner, level: float) -> dict[str, list[Config]]:
        """Each way at the learning rate with which it first reaches a level of accuracy, with every seed."""
        best = {label: runner.best_lr(self.configs(label), level) for label in self.ways}
        return {label: with_seeds(config, self.seeds) for label, config in best.items()}

    def times(self, runner: Runner, level: float) -> dict[str, float | None]:
        """Mean seconds to that level of each way."""
        return {label: runner.time(configs, level) for label, configs in self.chosen(runner, level).items()}

    def table(self, runner: Runner, ours: str) -> list[str]:
        """The race as a Markdown table, with everybody's time over ours."""
        by_level = {level: (self.chosen(runner, level), self.times(runner, level)) for level in self.levels}
        heads = [f"{self.name}", "samples/s", "updates/s", "share of limit"]
        for level in self.levels:
            heads += [f"s to {100 * level:g} %", "lr", f"over `{ours}`"]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        first = by_level[self.levels[0]][1]
        for label in sorted(self.ways, key=lambda label: first[label] or float("inf")):
            outcome = runner.of(by_level[self.levels[0]][0][label][0])
            updates = outcome.updates / outcome.seconds if outcome.seconds else 0.0
            cells = [f"`{label}`", f"{outcome.samples_per_s:,.0f}", f"{updates:.1f}", f"{outcome.share_of_limit:.3f}"]
            for level, (chosen, times) in by_level.items():
                configs, time, mine = chosen[label], times[label], times[ours]
                reached = sum(runner.of(config).time_to(level) is not None for config in configs)
                shown = f"{reached} of {len(configs)} seeds" if time is None and reached else describe(time)
                cells += [shown, f"{configs[0].lr:g}", describe(time / mine if time and mine else None)]
            lines.append("| " + " | ".join(cells) + " |")
        return lines


@dataclass(frozen=True)
class ScheduledRace:
    """Runs of several lengths, each with a schedule that ends with it: how long must a run be to end at an accuracy?

    Of each length the learning rate with the best accuracy counts, the mean over seeds. Between two lengths, accuracy
    is taken to grow with the logarithm of the samples.
    """

    name: str
    fleet: str
    base: Config
    ways: Mapping[str, Way]
    lengths: Sequence[int]
    """In samples."""
    lrs: Sequence[float]
    seeds: Sequence[int]
    levels: Sequence[float]
    lrs_of: Mapping[str, Sequence[float]] = field(default_factory=dict)
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    """Of those that do not have the batch size."""

    def configs(self, label: str, samples: int) -> list[list[Config]]:
        """For each learning rate, the runs with all seeds."""
        config = replace(
            on_its_way(self, label),
            samples=samples,
            schedule="cosine",
            warmup_samples=samples // 20,
            eval_every=samples,
        )
        return [with_seeds(replace(config, lr=lr), self.seeds) for lr in self.lrs_of.get(label, self.lrs)]

    def every(self) -> list[Config]:
        """All runs."""
        return [c for label in self.ways for n in self.lengths for runs in self.configs(label, n) for c in runs]

    def ends(self, runner: Runner, label: str) -> list[tuple[float, float, float]]:
        """Of each length: the samples, the seconds they took, and the accuracy at the end."""
        ends = []
        for samples in self.lengths:
            outcomes = [[runner.of(run) for run in runs] for runs in self.configs(label, samples)]
            best = max(outcomes, key=lambda each: sum(outcome.final() for outcome in each))
            seconds = statistics.mean(outcome.seconds for outcome in best)
            ends.append((float(samples), seconds, statistics.mean(outcome.final() for outcome in best)))
        return ends

    def time(self, runner: Runner, label: str, level: float) -> float | None:
        """Seconds of the shortest run that ends at this accuracy."""
        ends = self.ends(runner, label)
        if ends[0][2] >= level:
            return ends[0][1]
        for (_, shorter, low), (_, longer, high) in itertools.pairwise(ends):
            if high >= level > low:
                return math.exp(math.log(shorter) + (level - low) / (high - low) * math.log(longer / shorter))
        return None

    def table(self, runner: Runner, ours: str) -> list[str]:
        """Accuracy at each length, and the time to each level with everybody's over ours."""
        heads = [self.name, "samples/s", *(f"{samples:,}" for samples in self.lengths)]
        for level in self.levels:
            heads += [f"s to {100 * level:g} %", f"over `{ours}`"]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        times = {label: [self.time(runner, label, level) for level in self.levels] for label in self.ways}
        for label in sorted(self.ways, key=lambda label: times[label][0] or float("inf")):
            ends = self.ends(runner, label)
            rate = ends[-1][0] / ends[-1][1]
            cells = [f"`{label}`", f"{rate:,.0f}", *(f"{100 * accuracy:.2f} %" for _, _, accuracy in ends)]
            for time, mine in zip(times[label], times[ours], strict=True):
                cells += [describe(time), describe(time / mine if time and mine else None)]
            lines.append("| " + " | ".join(cells) + " |")
        return lines


def on_its_way(race: Race | ScheduledRace, label: str) -> Config:
    """The run of one of the ways of a race, but for what its runs differ in."""
    algorithm, parameters = race.ways[label]
    micro_batch = race.micro_batches.get(label)
    return replace(
        race.base, fleet=race.fleet, algorithm=algorithm, parameters=dict(parameters), micro_batch=micro_batch
    )


def run_races(races: Sequence[Race], runner: Runner, what: str) -> None:
    """First every learning rate with one seed, then the best with all seeds."""
    runner.run([config for race in races for config in race.every()], f"{what}, learning rates")
    chosen = [
        config
        for race in races
        for level in race.levels
        for configs in race.chosen(runner, level).values()
        for config in configs
    ]
    runner.run(chosen, f"{what}, seeds")


def lead(times: Mapping[str, float | None], ours: str, others: Sequence[str]) -> float | None:
    """How many times sooner ours is there than the best of the others; None if ours never is, or none of them."""
    reached = [t for other in others if (t := times[other]) is not None]
    mine = times[ours]
    return min(reached) / mine if reached and mine is not None else None
