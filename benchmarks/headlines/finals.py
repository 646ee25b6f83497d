"""How good a run of fixed length gets, at its own best learning rate."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace

from claims import shown
from claims.at_best import GRACE_S, OutOfTime, climb
from claims.running import Curve, Outcome, do, key
from headlines import told
from ownpace import Config


@dataclass(frozen=True)
class Final:
    """What became of one algorithm in one place."""

    label: str
    lr: float
    """The best one; rates next to it on both sides were tried."""
    finals: list[float]
    """The accuracy at the end, with each seed."""
    seconds: float
    """Virtual ones, of the first seed's run."""
    samples_per_s: float
    updates_per_s: float
    share_of_limit: float
    tried: dict[str, float]
    """Learning rate → accuracy at the end, with the first seed."""


def keep(config: Config, outcome: Outcome) -> None:
    """Keep one run, with its curve."""
    what = f"{config.algorithm}, lr {config.lr:g}, seed {config.seed}"
    # One write: several processes add to the same file.
    with told.runs().open("a") as kept:
        kept.write(json.dumps({"key": key(config), "what": what, "outcome": asdict(outcome)}) + "\n")


@dataclass
class FinalSearch:
    """One algorithm's search for the rate with which it ends best. Runs that were made before are not made again."""

    base: Config
    deadline: float = math.inf
    seeds: tuple[int, ...] = (0, 1, 2)

    def find(self, label: str, guess: float) -> Final:
        """The best rate on a grid of powers of two, both of whose neighbours were tried; then all seeds with it.

        Raises:
            OutOfTime: The deadline has passed.
        """
        # The higher the better, where a climb goes down.
        lr, outcomes = climb(guess, lambda rate, _: self._run(rate, self.seeds[0]), lambda each: -each.final())
        first = outcomes[lr]
        return Final(
            label,
            lr,
            [each.final() for each in (first, *(self._run(lr, seed) for seed in self.seeds[1:]))],
            first.seconds,
            first.samples_per_s,
            first.updates / first.seconds if first.seconds else 0.0,
            first.share_of_limit,
            {f"{rate:g}": outcomes[rate].final() for rate in sorted(outcomes)},
        )

    def _run(self, lr: float, seed: int) -> Outcome:
        config = replace(self.base, lr=lr, seed=seed)
        name = key(config)
        runs = told.runs()
        for line in runs.read_text().splitlines() if runs.exists() else ():
            entry = json.loads(line)
            if entry["key"] == name:
                return Outcome(**entry["outcome"])
        if time.monotonic() > self.deadline:
            raise OutOfTime
        outcome = do(config, self._never)
        keep(config, outcome)
        return outcome

    def _never(self, curve: Curve) -> bool:
        if time.monotonic() > self.deadline + GRACE_S:
            raise OutOfTime
        return False


@dataclass(frozen=True)
class Objectives:
    """Where WP-SGD ends with one rule of weights."""

    label: str
    lr: float
    objectives: list[float]
    """The loss on the training data with its L2 term, with each seed."""
    seconds: float


def objectives(rule: str, steps: int, deadline: float, num_seeds: int = 5) -> Objectives:
    """One average after so many steps of the fastest.

    Raises:
        OutOfTime: The deadline has passed.
    """
    outcomes = []
    for seed in range(num_seeds):
        if time.monotonic() > deadline:
            raise OutOfTime
        outcomes.append(do(shown.wp(rule, steps, seed)))
    found = [each.objective for each in outcomes if each.objective is not None]
    return Objectives(rule, shown.wp(rule, steps, 0).lr, found, outcomes[0].seconds)
