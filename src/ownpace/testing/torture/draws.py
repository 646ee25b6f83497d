"""Random choices that are the same on every machine and with every version of every library."""

from __future__ import annotations

import math
from typing import TypeVar

from ownpace.core.learning.seeds import derive

T = TypeVar("T")


class Draws:
    """Draws one thing after the other from a seed.

    >>> Draws(4711).number(1, 6) == Draws(4711).number(1, 6)
    True
    """

    def __init__(self, *seed: int) -> None:
        self._seed = seed
        self._count = 0

    def share(self) -> float:
        """From 0 up to, but not including, 1."""
        self._count += 1
        return derive(*self._seed, self._count) / 2**63

    def chance(self, probability: float) -> bool:
        """Whether something happens that does so this often."""
        return self.share() < probability

    def aside(self, probability: float) -> bool:
        """The same, for what was added later: all other draws stay what they were without it."""
        return derive(*self._seed, self._count, 1) / 2**63 < probability

    def number(self, lowest: int, highest: int) -> int:
        """A whole number, both ends included."""
        return lowest + int(self.share() * (highest - lowest + 1))

    def between(self, low: float, high: float) -> float:
        """A number from a range, every size of it equally likely: half of those from 1 to 100 are below 10."""
        return float(f"{low * math.exp(self.share() * math.log(high / low)):.4g}")

    def one_of(self, *choices: T) -> T:
        """One of several things."""
        return choices[self.number(0, len(choices) - 1)]
