"""One file per algorithm, and the registry: the one place where a name becomes a class."""

from __future__ import annotations

from collections.abc import Mapping

from ownpace.algorithms.async_ import AsyncSgd
from ownpace.algorithms.balanced import BalancedSgd
from ownpace.algorithms.stale import StaleSgd
from ownpace.algorithms.sync import SyncSgd
from ownpace.core.algorithm import Algorithm
from ownpace.core.errors import unknown
from ownpace.core.settings import build

ALGORITHMS: dict[str, type[Algorithm]] = {
    "sync": SyncSgd,
    "async": AsyncSgd,
    "stale": StaleSgd,
    "balanced": BalancedSgd,
}


def make_algorithm(name: str, parameters: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm of that name with these parameters, which may be strings.

    >>> make_algorithm("stale", {"staleness": "5"})
    StaleSgd(staleness=5)
    """
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS, "`ownpace list` describes them")
    return build(ALGORITHMS[name], parameters or {}, where=f"the parameters of {name}")


__all__ = ["ALGORITHMS", "AsyncSgd", "BalancedSgd", "StaleSgd", "SyncSgd", "make_algorithm"]
