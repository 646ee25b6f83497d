"""How fast each worker computes, learnt from the sums that all of them see."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Contribution

_TOLERANCE = 0.1
"""By what share a size may be off before it is changed."""


class Paces:
    """Each worker's measured pace, out of the sums that all of them see: all keep the same."""

    def __init__(self, num_workers: int, smoothing: float) -> None:
        self._smoothing = smoothing
        self.samples_per_s = [0.0] * num_workers
        """Of each worker, by rank; 0 as long as nothing is known."""

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Learn from what each member of a sum contributed, in which time."""
        for i, part in enumerate(contributions):
            old, new = self.samples_per_s[i], part.pace
            self.samples_per_s[i] = old + self._smoothing * (new - old) if old and new else old or new

    @property
    def known(self) -> bool:
        """Whether there is a measurement of everybody."""
        return all(self.samples_per_s)


def differs(new: float, old: float, tolerance: float = _TOLERANCE) -> bool:
    """Whether a size or a share has changed by so much that it is worth acting on."""
    return abs(new - old) > tolerance * old


def check_smoothing(smoothing: float) -> None:
    """Raise if this is not the weight of a newest measurement."""
    if not 0 < smoothing <= 1:
        raise InputError(f"smoothing is {smoothing}; it must be above 0 and at most 1")
