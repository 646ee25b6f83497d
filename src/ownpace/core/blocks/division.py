"""How a global batch is divided among workers of different pace: such that all take equally long."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.blocks.paces import Paces, divide
from ownpace.core.contract.values import Contribution

_FIRST_LOOK = 8
"""Measured batches of a division after which their mean is looked at, then after four times as many, and so on."""
_FINE = 0.2
"""Of the tolerance: what is worth changing where the mean of many batches says so."""


class Division:
    """Each worker's part of a batch. All workers see the same sums, so all divide alike.

    Sizes settle within a few updates and then stay, since GPUs choose their kernels anew for every size: a division is
    changed only where an update would take less time by more than `tolerance`, at the smoothed paces. Those follow a
    change of pace at once, but jitter makes them imprecise. So now and then, ever more rarely, the mean paces of the
    whole time are asked, too, which tell small differences from chance. The first batch of a division is not measured:
    on a GPU its time is that of choosing kernels.
    """

    def __init__(self, total: int, num_workers: int, smoothing: float, tolerance: float) -> None:
        self.sizes: Sequence[int] = divide(total, [1.0] * num_workers)
        """Of each worker's part, by rank."""
        self._total = total
        self._tolerance = tolerance
        self._paces = Paces(num_workers, smoothing)
        self._begin(self.sizes)

    def _begin(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._batches = -1  # the first is not measured
        self._next_look = _FIRST_LOOK
        self._samples = [0] * len(sizes)
        self._seconds = [0.0] * len(sizes)

    def learn(self, contributions: Sequence[Contribution]) -> None:
        """Learn from a sum what each worker contributed, and in which time."""
        self._batches += 1
        if not self._batches:
            return
        self._paces.take(contributions)
        for rank, part in enumerate(contributions):
            self._samples[rank] += part.samples
            self._seconds[rank] += part.seconds
        if self._paces.known and not self._follow(self._paces.samples_per_s, self._tolerance):
            self._maybe_look()

    def _maybe_look(self) -> None:
        if self._batches >= self._next_look:
            self._next_look *= 4
            if all(self._seconds) and all(self._samples):
                means = [samples / seconds for samples, seconds in zip(self._samples, self._seconds, strict=True)]
                self._follow(means, _FINE * self._tolerance)

    def _follow(self, samples_per_s: Sequence[float], least: float) -> bool:
        """Divide anew if that saves more than `least` of an update's time; returns whether it did."""
        better = divide(self._total, samples_per_s)
        if better == self.sizes:
            return False
        worth_it = _seconds(better, samples_per_s) < (1 - least) * _seconds(self.sizes, samples_per_s)
        if worth_it:
            self._begin(better)
        return worth_it


def _seconds(sizes: Sequence[int], samples_per_s: Sequence[float]) -> float:
    """How long the slowest takes."""
    return max(size / pace for size, pace in zip(sizes, samples_per_s, strict=True))


__all__ = ["Division"]
