"""How large one worker's micro-batches are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ownpace.core.blocks.paces import Paces, differs
from ownpace.core.contract.values import Contribution

Sizing = Literal["fixed", "equal-time"]
GRAINS = 16
"""Sizes are multiples of the largest micro-batch divided by this."""
PATIENCE = 20
"""Sums until a size whose shrinking was undone may shrink again."""
# Below 1: the micro-batch has to be done before the next sum arrives.
_MOST_OF_THE_TIME = 0.8


class MicroBatch:
    """The size of one worker's micro-batches: fixed, or such that all workers' take about equally long.

    In equal time, the fastest worker's have `largest` samples, which take a time T. The others' are smaller: what
    takes T, or a share of the time between two sums, if that is longer (by default most of it). Three things keep
    sizes steady. A size stays until it is off by a tenth. It is a whole number of grains, since GPUs choose their
    kernels anew for every size. And it does not shrink where that saves no time, as it does not where starting a
    micro-batch is what takes long: after each shrinking, the next sum shows the pace at the new size, and if the
    pace has fallen by more than a third of the size's reduction, the old size is restored.
    """

    def __init__(
        self,
        rank: int,
        num_workers: int,
        largest: int,
        sizing: Sizing,
        smoothing: float,
        share: float = _MOST_OF_THE_TIME,
    ) -> None:
        self._rank = rank
        self._share = share
        self._largest = largest
        self._fixed = sizing == "fixed"
        self._paces = Paces(num_workers, smoothing)
        self._before: tuple[int, float] | None = None
        self._patience = 0
        self.size = largest
        """For the next batch."""

    @property
    def paces(self) -> Sequence[float] | None:
        """Every worker's pace, by rank; None until all have been measured. The same on all workers."""
        return self._paces.samples_per_s if self._paces.known else None

    def learn(self, contributions: Sequence[Contribution], size: int) -> None:
        """Learn from a sum: what each worker contributed, in which time, and which size my micro-batches had."""
        self._paces.take(contributions)
        pace = contributions[self._rank].pace
        if self._fixed or not self._paces.known or not pace:
            return
        if self._before is not None:
            # Sums of batches that were begun before the size changed say nothing about the new one: skip them.
            if size == self.size:
                self._look_back(pace)
            return
        self._patience = max(0, self._patience - 1)
        wish = self._wish(contributions)
        if not differs(wish, self.size) or (wish < self.size and self._patience):
            return
        # Only shrinking is checked afterwards: growing does not cost pace, as fewer micro-batches are started.
        if wish < self.size:
            self._before = self.size, pace
        self.size = wish

    def _wish(self, contributions: Sequence[Contribution]) -> int:
        paces = self._paces.samples_per_s
        fastest = paces.index(max(paces))
        seconds = max(self._largest / paces[fastest], self._share * contributions[fastest].seconds)
        grain = max(1, self._largest // GRAINS)
        return min(self._largest, max(1, round(paces[self._rank] * seconds / grain) * grain))

    def _look_back(self, pace: float) -> None:
        """This is the pace at a size that has just shrunk: restore the old size, unless shrinking saved time."""
        assert self._before is not None
        (size, before), self._before = self._before, None
        if pace < before * (1 - (1 - self.size / size) / 3):
            self.size = size
            self._patience = PATIENCE


__all__ = ["MicroBatch", "Sizing"]
