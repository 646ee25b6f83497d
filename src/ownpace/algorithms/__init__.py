"""One file per algorithm, and the registry: the one place where a name becomes a class."""

from __future__ import annotations

from collections.abc import Mapping

from ownpace.algorithms.abs_ import AbsSgd
from ownpace.algorithms.acco import Acco
from ownpace.algorithms.async_ import AsyncSgd
from ownpace.algorithms.backup import BackupSgd
from ownpace.algorithms.balanced import BalancedSgd
from ownpace.algorithms.cocod import CocodSgd
from ownpace.algorithms.dc_async import DcAsyncSgd
from ownpace.algorithms.diloco import DiLoCo
from ownpace.algorithms.grouping import GroupingSgd
from ownpace.algorithms.layered import LayeredSgd
from ownpace.algorithms.local import LocalSgd
from ownpace.algorithms.od import OdSgd
from ownpace.algorithms.overlap_local import OverlapLocalSgd
from ownpace.algorithms.pace import PaceSgd
from ownpace.algorithms.pipe import PipeSgd
from ownpace.algorithms.stale import StaleSgd
from ownpace.algorithms.staleness_aware import StalenessAwareSgd
from ownpace.algorithms.stride import StrideSgd
from ownpace.algorithms.sync import SyncSgd
from ownpace.algorithms.wp import SimuParallelSgd, WpSgd
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import unknown
from ownpace.core.settings import build

ALGORITHMS: dict[str, type[Algorithm]] = {
    "pace": PaceSgd,
    "stride": StrideSgd,
    "sync": SyncSgd,
    "balanced": BalancedSgd,
    "abs": AbsSgd,
    "acco": Acco,
    "pipe": PipeSgd,
    "od": OdSgd,
    "layered": LayeredSgd,
    "grouping": GroupingSgd,
    "async": AsyncSgd,
    "stale": StaleSgd,
    "dc-async": DcAsyncSgd,
    "staleness-aware": StalenessAwareSgd,
    "backup": BackupSgd,
    "local": LocalSgd,
    "diloco": DiLoCo,
    "cocod": CocodSgd,
    "overlap-local": OverlapLocalSgd,
    "wp": WpSgd,
    "simuparallel": SimuParallelSgd,
}
DEFAULT = "pace"


def make_algorithm(name: str, parameters: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm of that name with these parameters, which may be strings.

    >>> make_algorithm("stale", {"staleness": "5"})
    StaleSgd(staleness=5, by_layer=False)
    """
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS, "`ownpace list` describes them; your own is my.py:Class")
    return build(ALGORITHMS[name], parameters or {}, where=f"the parameters of {name}")


__all__ = ["ALGORITHMS", "DEFAULT", "make_algorithm"]
