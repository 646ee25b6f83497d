"""One file per algorithm, and the registry: the one place where a name becomes a class."""

from __future__ import annotations

from collections.abc import Mapping

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.late import Registry
from ownpace.core.settings import build

ALGORITHMS = Registry[Algorithm](
    {
        "pace": "ownpace.algorithms.pace:PaceSgd",
        "stride": "ownpace.algorithms.stride:StrideSgd",
        "sync": "ownpace.algorithms.sync:SyncSgd",
        "balanced": "ownpace.algorithms.balanced:BalancedSgd",
        "abs": "ownpace.algorithms.abs_:AbsSgd",
        "acco": "ownpace.algorithms.acco:Acco",
        "pipe": "ownpace.algorithms.pipe:PipeSgd",
        "od": "ownpace.algorithms.od:OdSgd",
        "layered": "ownpace.algorithms.layered:LayeredSgd",
        "grouping": "ownpace.algorithms.grouping:GroupingSgd",
        "async": "ownpace.algorithms.async_:AsyncSgd",
        "stale": "ownpace.algorithms.stale:StaleSgd",
        "dc-async": "ownpace.algorithms.dc_async:DcAsyncSgd",
        "staleness-aware": "ownpace.algorithms.staleness_aware:StalenessAwareSgd",
        "backup": "ownpace.algorithms.backup:BackupSgd",
        "local": "ownpace.algorithms.local:LocalSgd",
        "diloco": "ownpace.algorithms.diloco:DiLoCo",
        "cocod": "ownpace.algorithms.cocod:CocodSgd",
        "overlap-local": "ownpace.algorithms.overlap_local:OverlapLocalSgd",
        "wp": "ownpace.algorithms.wp:WpSgd",
        "simuparallel": "ownpace.algorithms.wp:SimuParallelSgd",
    }
)
DEFAULT = "stride"
COMPARED = ("sync", "balanced", "pace", DEFAULT)
"""What is compared where nothing is named."""


def make_algorithm(name: str, parameters: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm of that name with these parameters, which may be strings.

    >>> make_algorithm("stale", {"staleness": "5"})
    StaleSgd(staleness=5, by_layer=False)
    """
    if name not in ALGORITHMS:
        raise unknown_algorithm(name)
    return build(ALGORITHMS[name], parameters or {}, where=f"the parameters of {name} (-p)")


def unknown_algorithm(name: str) -> InputError:
    """The error for a name that no algorithm has."""
    if name == "auto":
        return InputError(
            "algorithm 'auto' is for `ownpace train`, ownpace.train and ownpace.join, which choose one; name one here"
        )
    return unknown("algorithm", name, ALGORITHMS, "`ownpace list` describes them; your own is my.py:Class")


__all__ = ["ALGORITHMS", "COMPARED", "DEFAULT", "make_algorithm", "unknown_algorithm"]
