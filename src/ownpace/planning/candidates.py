"""Who takes part in a plan, and where the search for each one's learning rate begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.errors import InputError, unknown
from ownpace.fleet import Fleet
from ownpace.run.saved import label

SAME_UPDATES = ("balanced", "sync", "layered")
"""These make the same updates, only at other times: what is learnt of one holds for all. The first is the fastest where
machines differ."""
MANY_WORKERS = 100
MUCH_JITTER = 0.5
"""From here on, the slowest of several workers is another one each time."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm that takes part."""

    algorithm: str
    """Its name, or `module:Class`."""
    ratio: float = 0.5
    """Its best learning rate over that of `sync`, with 16 workers, as the map has found it: the search begins there."""
    power: float = 0.0
    """Of the number of workers, in how that ratio grows with it."""
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What to call it."""
        return label(self.algorithm)

    def guess(self, lr_of_sync: float, num_workers: int) -> float:
        """Where the search begins."""
        return float(lr_of_sync * self.ratio * (num_workers / 16) ** self.power)


KNOWN = {
    "pace": Candidate("pace"),
    "stride": Candidate("stride", 1.0),
    "acco": Candidate("acco", 1.0),
    "async": Candidate("async", 1 / 64, -1.5),
    "local": Candidate("local", 0.5, -0.5),
    "diloco": Candidate("diloco", 0.25),
    "wp": Candidate("wp", 0.5),
    "balanced": Candidate("balanced", 1.0),
    "sync": Candidate("sync", 1.0),
    "layered": Candidate("layered", 1.0),
    "backup": Candidate("backup", 1.0),
    "abs": Candidate("abs", 0.25, -0.5),
    "grouping": Candidate("grouping", 0.5, -0.5),
    "stale": Candidate("stale", 1 / 64, -1.5),
    "dc-async": Candidate("dc-async", 1 / 64, -1.5),
    "staleness-aware": Candidate("staleness-aware", 0.25),
    "od": Candidate("od", 1.0, 0.0, {"warmup": 20}),
    "pipe": Candidate("pipe"),
}
LEFT_OUT = {
    "abs": "pace is the same with a prediction, which helps",
    "od": "pace does the same, and waits for nobody",
    "pipe": "pace does the same, and waits for nobody",
    "grouping": "where it was measured, it was nowhere the first",
    "stale": "async with a bound, which makes the fast wait",
    "dc-async": "async with a correction",
    "staleness-aware": "async with smaller steps",
    "cocod": "stride does the same, by pace",
    "overlap-local": "stride does the same, by pace",
    "simuparallel": "wp with equal weights",
    "layered": "for several sites, or slow loading",
    "backup": "for machines that are slow at random",
}
"""Who takes part only if it is named, or if the fleet is one for it, and why."""


def candidates(fleet: Fleet, names: Sequence[str] | None = None) -> tuple[list[Candidate], dict[str, str]]:
    """Who takes part on a fleet, and who does not and why; with `names`, exactly those.

    Raises:
        InputError: A name is unknown, or there is none.
    """
    if names is not None:
        for name in names:
            if name not in ALGORITHMS and ":" not in name:
                raise unknown("algorithm", name, ALGORITHMS, "`ownpace list` describes them")
        if not names or len(set(names)) < len(names):
            raise InputError(f"algorithms is {', '.join(names) or 'empty'}; name at least one, each once")
        return [KNOWN.get(name, Candidate(name)) for name in names], {}
    why = dict(LEFT_OUT)
    if len({machine.site for machine in fleet.machine}) > 1 or any(each.io_s_per_sample for each in fleet.machine):
        del why["layered"]
    if len(fleet.workers) > MANY_WORKERS:
        why["wp"] = "it takes too long to simulate with so many workers; diloco is much alike"
    if len(fleet.workers) > 2 and max(machine.jitter for machine in fleet.machine) >= MUCH_JITTER:
        del why["backup"]
    return [KNOWN.get(name, Candidate(name)) for name in ALGORITHMS if name not in why], why


def with_same_updates(names: Sequence[str]) -> list[str]:
    """Those of these that make the same updates as each other."""
    return [name for name in SAME_UPDATES if name in names]
