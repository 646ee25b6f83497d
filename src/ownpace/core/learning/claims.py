"""Who took which places of an order of samples, and which are left.

Workers take places from one shared count, each as many as it wants. A place whose sample has gone into the parameters,
or was thrown away, is used up; any other is left, whether it was taken or not: a run that goes on later deals it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

ENDLESS = 1 << 62
"""More places than any order has: where a stream ends is known only once it does."""
Places = tuple[int, int]
"""The first place of a range, and the one after its last."""


class Claim(NamedTuple):
    """Places that a worker took, in one go."""

    start: int
    samples: int
    rank: int


def left_over(total: int, claims: Iterable[Claim], applied: Sequence[int]) -> list[Places]:
    """The places that are left, as ranges in ascending order.

    >>> left_over(10, [Claim(0, 3, 0), Claim(3, 3, 1), Claim(6, 3, 0)], applied=[4, 2])
    [(5, 6), (7, 10)]

    Args:
        total: How many places there are.
        claims: In the order in which they were made; some may reach beyond the end.
        applied: Of each rank, how many of the samples that it took are in the parameters or were thrown away. They are
            the first ones that it took.
    """
    unexplained = list(applied)
    used: list[Places] = []
    for start, samples, rank in claims:
        samples = max(0, min(samples, total - start, unexplained[rank]))
        unexplained[rank] -= samples
        if samples:
            used.append((start, start + samples))
    left, begin = [], 0
    for start, stop in sorted(used):
        if begin < start:
            left.append((begin, start))
        begin = max(begin, stop)
    return [*left, (begin, total)] if begin < total else left


def within(left: Sequence[Places], start: int, stop: int) -> list[Places]:
    """Places start … stop − 1 of those that are left, as ranges of the order itself.

    >>> within([(5, 6), (7, 10)], 0, 3)
    [(5, 6), (7, 9)]
    """
    found, passed = [], 0
    for first, end in left:
        begin, last = max(start - passed, 0) + first, min(stop - passed + first, end)
        if begin < last:
            found.append((begin, last))
        passed += end - first
    return found


def number_of(places: Iterable[Places]) -> int:
    """How many places some ranges have.

    >>> number_of([(5, 6), (7, 10)])
    4
    """
    return sum(stop - start for start, stop in places)


def left_of(dealt: Sequence[Places], claims: Sequence[Claim], used: Sequence[int] | None, samples: int) -> list[Places]:
    """The places that are left of those that were dealt out.

    >>> left_of([(5, 6), (7, 10)], [Claim(0, 2, 0), Claim(2, 2, 1)], used=[1, 2], samples=3)
    [(7, 8)]

    Args:
        dealt: What the claims are of.
        claims: In the order in which they were made.
        used: Of each rank, how many of the samples that it took are used up (None: not known).
        samples: How many have been learnt from in all. Where it is not known of which rank, the first ones were.
    """
    taken: dict[int, int] = {}
    for claim in claims:
        taken[claim.rank] = taken.get(claim.rank, 0) + claim.samples
    if used is None or any(number > taken.get(rank, 0) for rank, number in enumerate(used)):
        claims, used = [Claim(0, samples, 0)], [samples]
    left = left_over(number_of(dealt), claims, used)
    return [places for start, stop in left for places in within(dealt, start, stop)]
