"""Several ways of training race to a target accuracy, each at its own best learning rate."""

from __future__ import annotations

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

    def configs(self, label: str, seed: int = 0) -> list[Config]:
        """One run for each learning rate."""
        algorithm, parameters = self.ways[label]
        base = replace(self.base, fleet=self.fleet, algorithm=algorithm, parameters=dict(parameters), seed=seed)
        return [replace(base, lr=lr) for lr in self.lrs_of.get(label, self.lrs)]

    def every(self) -> list[Config]:
        """All runs of the first seed: they choose the learning rates."""
        return [config for label in self.ways for config in self.configs(label)]

    def chosen(self, runner: Runner) -> dict[str, list[Config]]:
        """Each way at its best learning rate, with every seed."""
        return {label: with_seeds(runner.best_lr(self.configs(label)), self.seeds) for label in self.ways}

    def times(self, runner: Runner) -> dict[str, float | None]:
        """Mean seconds to the target of each way."""
        return {label: runner.time(configs) for label, configs in self.chosen(runner).items()}

    def table(self, runner: Runner, ours: str) -> list[str]:
        """The race as a Markdown table, with everybody's time over ours."""
        chosen, times = self.chosen(runner), self.times(runner)
        goal = f"s to {100 * (self.base.target or 0):g} %"
        lines = [
            f"| {self.name} | best lr | {goal} | over `{ours}` | samples/s | updates/s | share of limit |",
            "|---|---|---|---|---|---|---|",
        ]
        mine = times[ours]
        for label, configs in sorted(chosen.items(), key=lambda item: times[item[0]] or float("inf")):
            outcomes = [runner.of(config) for config in configs]
            reached = [o.time_to_target for o in outcomes]
            time = describe(times[label])
            if times[label] is None and any(t is not None for t in reached):
                time = f"{sum(t is not None for t in reached)} of {len(reached)} seeds"
            ratio = times[label] / mine if times[label] and mine else None  # type: ignore[operator]
            first = outcomes[0]
            updates = first.updates / first.seconds if first.seconds else 0.0
            lines.append(
                f"| `{label}` | {configs[0].lr:g} | {time} | {describe(ratio)} | {first.samples_per_s:,.0f} | "
                f"{updates:.1f} | {first.share_of_limit:.3f} |"
            )
        return lines


def run_races(races: Sequence[Race], runner: Runner, what: str) -> None:
    """First every learning rate with one seed, then the best with all seeds."""
    runner.run([config for race in races for config in race.every()], f"{what}, learning rates")
    chosen = [config for race in races for configs in race.chosen(runner).values() for config in configs]
    runner.run(chosen, f"{what}, seeds")


def lead(times: Mapping[str, float | None], ours: str, others: Sequence[str]) -> float | None:
    """How many times sooner ours is there than the best of the others; None if ours never is, or none of them."""
    reached = [t for other in others if (t := times[other]) is not None]
    mine = times[ours]
    return min(reached) / mine if reached and mine is not None else None
