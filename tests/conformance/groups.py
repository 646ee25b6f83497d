"""Groups of workers, as the tests of Grouping-SGD name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ownpace.fleet import Network

Groups = Sequence[Sequence[int]]
INSTANT = Network(bandwidth_bytes_per_s=1e12, latency_s=0.0)
"""Links on which nothing takes time worth mentioning."""


def by_hand(groups: Groups) -> str:
    """Groups as the algorithm's parameter has them: 0,1/2."""
    return "/".join(",".join(map(str, group)) for group in groups)


def as_sets(groups: Iterable[Iterable[int]]) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}
