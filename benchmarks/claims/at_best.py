"""How soon an algorithm is at an accuracy, at its own best learning rate: the search of the map and the headlines."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from claims.running import Curve, Outcome, do
from ownpace import Config

STEP = 2.0
"""From one learning rate to the next."""
LOWEST, HIGHEST = 2.0**-14, 2.0**3
SMOOTH = 3
"""An accuracy is reached when so many evaluations in a row have it on average: no win by one lucky crossing."""
GRACE_S = 30.0
"""A run that goes on for so long after all was to end is given up; before, it may still end."""


class OutOfTime(Exception):
    """What was to be found out is not known yet; another start will find it."""


@dataclass(frozen=True)
class Goal:
    """What is looked for, and how long."""

    level: float
    """The accuracy whose time is taken."""
    seeds: Sequence[int] = (0, 1, 2)
    hopeless: float = 5.0
    """A run ends when it has taken so many times as long as the best rival so far."""
    far: float = 2.0
    """Who takes so many times as long as the best rival so far runs with one seed only: that is known well enough."""
    behind: float = 0.02
    """A learning rate is given up when it is so far behind the best one at half of that one's time."""


@dataclass(frozen=True)
class Found:
    """What became of one algorithm in one place."""

    label: str
    lr: float
    """The best one; rates next to it on both sides were tried."""
    seconds: list[float | None]
    """Until the accuracy was reached, with each seed; None: never, or hopelessly late."""
    accuracy: float
    """The best that was seen with the first seed."""
    samples_per_s: float
    updates_per_s: float
    share_of_limit: float
    tried: dict[str, float | None]
    """Learning rate → seconds, with the first seed; None: never, or later than the best one before it."""


def climb(
    guess: float,
    attempt: Callable[[float, Mapping[float, Outcome]], Outcome],
    cost: Callable[[Outcome], Any],
) -> tuple[float, dict[float, Outcome]]:
    """From a first guess to the rate of the least cost on a grid of powers of two, and all outcomes on the way.

    Both neighbours of the best were tried. `attempt` is given a rate, and what is known of others.
    """
    outcomes: dict[float, Outcome] = {}
    lr = 2.0 ** round(math.log2(guess))
    while True:
        for near in (lr, lr / STEP, lr * STEP):
            if LOWEST <= near <= HIGHEST and near not in outcomes:
                outcomes[near] = attempt(near, outcomes)
        best = min(outcomes, key=lambda rate: cost(outcomes[rate]))
        if best == lr:
            return lr, outcomes
        lr = best


@dataclass
class Search:
    """One algorithm's search for its best rate, from a first guess on."""

    base: Config
    goal: Goal
    best_s: float = math.inf
    """Of the best rival so far."""
    deadline: float = math.inf
    """Of the monotonic clock: no run begins after it."""
    keep: Callable[[Config, Outcome], None] | None = None
    """Takes every run that was made."""

    def find(self, label: str, guess: float) -> Found:
        """The best rate on a grid of powers of two, both of whose neighbours were tried; then all seeds with it.

        Raises:
            OutOfTime: The deadline has passed.
        """
        lr, outcomes = climb(guess, self._attempt, self._cost)
        first = outcomes[lr]
        took_s = self._reached_s(first)
        others = []
        if took_s is not None and took_s < self.goal.far * self.best_s:
            others = [self._run(lr, seed, min(self._limit_s, 3 * took_s)) for seed in self.goal.seeds[1:]]
        return Found(
            label,
            lr,
            [self._reached_s(each) for each in (first, *others)],
            max(smooth(scores(first.curve)), default=0.0),
            first.samples_per_s,
            first.updates / first.seconds if first.seconds else 0.0,
            first.share_of_limit,
            {f"{rate:g}": self._reached_s(outcomes[rate]) for rate in sorted(outcomes)},
        )

    @property
    def _limit_s(self) -> float:
        return min(self.goal.hopeless * self.best_s, self.base.seconds or math.inf)

    def _attempt(self, lr: float, outcomes: Mapping[float, Outcome]) -> Outcome:
        """One rate with the first seed. Once another has been there, this one need not take longer."""
        if not outcomes:
            return self._run(lr, self.goal.seeds[0], self._limit_s)
        leader = min(outcomes.values(), key=self._cost)
        took_s = self._reached_s(leader)
        limit_s = self._limit_s if took_s is None else min(self._limit_s, took_s)
        half_s = leader.seconds / 2
        return self._run(lr, self.goal.seeds[0], limit_s, lambda curve: self._far_behind(curve, leader, half_s))

    def _far_behind(self, curve: Curve, leader: Outcome, half_s: float) -> bool:
        now = curve[-1][0]
        assert now is not None
        before = [point for point in leader.curve if point[0] is not None and point[0] <= now]
        if now < half_s or len(scores(before)) < SMOOTH or not scores(curve):
            return False
        return smooth(scores(curve))[-1] < smooth(scores(before))[-1] - self.goal.behind

    def _run(self, lr: float, seed: int, limit_s: float, hopeless: Callable[[Curve], bool] | None = None) -> Outcome:
        if time.monotonic() > self.deadline:
            raise OutOfTime

        def enough(curve: Curve) -> bool:
            if time.monotonic() > self.deadline + GRACE_S:
                raise OutOfTime
            there = smooth(scores(curve))[-1:] >= [self.goal.level]
            return there or (hopeless is not None and hopeless(curve))

        seconds = None if math.isinf(limit_s) else limit_s
        config = replace(self.base, lr=lr, seed=seed, seconds=seconds)
        outcome = do(config, enough)
        if self.keep is not None:
            self.keep(config, outcome)
        return outcome

    def _cost(self, outcome: Outcome) -> tuple[float, float]:
        reached = self._reached_s(outcome)
        best = max(smooth(scores(outcome.curve)), default=0.0)
        return (0.0, reached) if reached is not None else (1.0, -best)

    def _reached_s(self, outcome: Outcome) -> float | None:
        return reached_s(outcome.curve, self.goal.level)


def reached_s(curve: Curve, level: float) -> float | None:
    """Seconds until the mean of some evaluations was at a level; between two evaluations, on a straight line."""
    times = [point[0] for point in curve if point[2] is not None]
    previous_t, previous = 0.0, 0.0
    for t, score in zip(times, smooth(scores(curve)), strict=True):
        assert t is not None
        if score >= level:
            return previous_t + (t - previous_t) * (level - previous) / (score - previous)
        previous_t, previous = t, score
    return None


def scores(curve: Curve) -> list[float]:
    """The accuracies of a curve."""
    return [point[2] for point in curve if point[2] is not None]


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each with those right before it."""
    return [statistics.mean(values[max(0, end - SMOOTH) : end]) for end in range(1, len(values) + 1)]
