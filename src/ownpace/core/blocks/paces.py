"""How fast each worker computes, learnt from the sums that all of them see."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Contribution

_TOLERANCE = 0.1
"""The relative error of a size that is still left alone."""


class Paces:
    """Each worker's measured pace. All workers see the same sums, so all hold the same paces."""

    def __init__(self, num_workers: int, smoothing: float) -> None:
        self._smoothing = smoothing
        self.samples_per_s = [0.0] * num_workers
        """Of each worker, by rank; 0 as long as nothing is known."""

    def take(self, contributions: Sequence[Contribution]) -> None:
        """Learn from what each member of a sum contributed, in which time."""
        for i, part in enumerate(contributions):
            # A worker that contributed nothing this time keeps its pace; the first measurement is taken as it is.
            old, new = self.samples_per_s[i], part.pace
            self.samples_per_s[i] = old + self._smoothing * (new - old) if old and new else old or new

    @property
    def known(self) -> bool:
        """Whether every worker has been measured."""
        return all(self.samples_per_s)


def differs(new: float, old: float, tolerance: float = _TOLERANCE) -> bool:
    """Whether a size or a share has changed enough to act on."""
    return abs(new - old) > tolerance * old


def divide(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to `shares` that add up to `total`, each at least 1 if there is enough.

    >>> divide(10, [4, 2, 1, 1])
    [5, 3, 1, 1]
    """
    # All workers of a fleet divide alike: in virtual time, one of a thousand does it for all of them.
    return list(_divided(total, tuple(shares)))


@lru_cache(maxsize=16)
def _divided(total: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    all_shares = sum(shares)
    exact = [total * share / all_shares for share in shares]
    # Rounded down, then the largest remainders up: the sizes add up to `total` exactly.
    sizes = [int(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    for i in [i for i, size in enumerate(sizes) if size == 0]:
        largest = sizes.index(max(sizes))
        if sizes[largest] > 1:
            sizes[largest] -= 1
            sizes[i] = 1
    return tuple(sizes)


def check_smoothing(smoothing: float) -> None:
    """Raise if this cannot be the weight of the newest measurement."""
    if not 0 < smoothing <= 1:
        raise InputError(f"smoothing is {smoothing}; it must be above 0 and at most 1")


__all__ = ["Paces", "check_smoothing", "differs", "divide"]
