"""How large one worker's micro-batches are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from ownpace.core.blocks.paces import Paces, differs
from ownpace.core.contract.values import Contribution

Sizing = Literal["fixed", "equal-time"]
GRAINS = 16
"""Into how many grains the largest micro-batch is divided."""
_PATIENCE = 20
"""Sums until a size that did not want to shrink is tried again."""
_MOST_OF_THE_TIME = 0.8


class MicroBatch:
    """How large one worker's micro-batches are: as given, or so that everybody's take about equally long.

    Then the fastest worker's are of `largest` samples, which take a time T, and the others' are smaller: what takes T,
    or most of the time between two sums, if that is longer. A size is kept until it is off by a tenth, and comes in
    grains, since cards tune their kernels for every new one. And it does not shrink where that saves no time: if
    beginning a micro-batch takes long, small ones are a waste. So each time that a size has shrunk, the next sum tells
    what became of the pace: if it has lost more than a third of what the size has, that is undone.
    """

    def __init__(self, rank: int, num_workers: int, largest: int, sizing: Sizing, smoothing: float) -> None:
        self._rank = rank
        self._largest = largest
        self._fixed = sizing == "fixed"
        self._paces = Paces(num_workers, smoothing)
        self._size = largest
        self._given: deque[int] = deque()
        self._before: tuple[int, float] | None = None
        self._patience = 0

    @property
    def share(self) -> float:
        """This worker's pace as a share of all workers' paces."""
        paces = self._paces.samples_per_s
        return paces[self._rank] / sum(paces) if self._paces.known else 1 / len(paces)

    def next(self) -> int:
        """The size for the next batch. In the order of these calls, `take` is told what came of them."""
        self._given.append(self._size)
        return self._size

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Learn from the sum of a batch: what each worker contributed, in which time."""
        size, pace = self._given.popleft(), contributions[self._rank].pace
        self._paces.take(contributions)
        if self._fixed or not self._paces.known or not pace:
            return
        if self._before is not None:
            if size == self._size:
                self._look_back(pace)
            return
        self._patience = max(0, self._patience - 1)
        wish = self._wish(contributions)
        if not differs(wish, self._size) or (wish < self._size and self._patience):
            return
        if wish < self._size:
            self._before = self._size, pace
        self._size = wish

    def _wish(self, contributions: Sequence[Contribution]) -> int:
        paces = self._paces.samples_per_s
        fastest = paces.index(max(paces))
        seconds = max(self._largest / paces[fastest], _MOST_OF_THE_TIME * contributions[fastest].seconds)
        grain = max(1, self._largest // GRAINS)
        return min(self._largest, max(1, round(paces[self._rank] * seconds / grain) * grain))

    def _look_back(self, pace: float) -> None:
        """A size has shrunk, and this is the pace with it: undo it, unless that saved time."""
        assert self._before is not None
        (size, before), self._before = self._before, None
        if pace < before * (1 - (1 - self._size / size) / 3):
            self._size = size
            self._patience = _PATIENCE
