"""The hub's part in leading a run from one generation to the next: who takes part, and who gives what to whom.

    running ──(a node died)──────────────────────► standing ──(all have said how far they are)──► preparing
       ▲    ──(border: all workers have ended)───►     ▲  ◄──(another node died)──────────────────────│
       └──────────────────(all are prepared)───────────┼──────────────────────────────────────────────┘
    running ──(all workers have ended, and the run is over)──► closing

The survivor with most updates has what counts: no update that any of them has made is lost.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from ownpace.core.contract.errors import InputError, OwnpaceError, ReplicasDiffer
from ownpace.engines.job import OnFailure
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.control import Control, Release, Start, Stop, Welcome
from ownpace.engines.process.talk.regrouping import Plan, Regroup, Standing
from ownpace.engines.roster import Roster

_HEAD_START_S = 0.05
"""How far in the future time zero is when it is announced: the announcement has to reach all nodes."""
_GRACE_S = 2.0
"""How long after the first node that lost a peer its death may be found. Then all connections are made anew."""
_MOST_IN_VAIN = 5
"""How often connections are made anew without a single update in between."""
Phase = Literal["starting", "running", "standing", "preparing", "closing"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Elasticity:
    """What a run does when machines come and go."""

    terms: RunTerms
    on_failure: OnFailure = "continue"
    min_workers: int = 1
    max_workers: int | None = None


@dataclass
class _Border:
    """What has been said since the last generation ended."""

    standings: dict[str, Standing] = field(default_factory=dict)
    prepared: dict[str, list[int]] = field(default_factory=dict)


class Generations:
    """Who takes part, and in which generation."""

    def __init__(self, config: Elasticity, tell: Callable[[Control, Iterable[str]], None]) -> None:
        self.number = 0
        self.phase: Phase = "starting"
        self.roster = config.terms.roster()
        self.members = {node.name for node in self.roster.nodes}
        """All nodes that are there, those that are not needed now included."""
        self.zero_s = math.inf
        """When time began, by the hub's clock."""
        self.ended: set[str] = set()
        """The workers that have come to the end of this generation."""
        self.on_start: Callable[[Roster, int], None] = _ignore
        """Called when a generation begins, with its roster and the number of updates before it."""
        self._config = config
        self._tell = tell
        self._border = _Border()
        self._fresh: set[str] = set()
        self._joining: dict[str, bool] = {}
        self._lost_since_s = math.inf
        self._in_vain = 0
        self._last_version = 0

    # ---- who is there ----

    def goes_on_without(self, name: str) -> bool:
        """Whether the run goes on if this node is gone."""
        if name not in self.members:
            return True
        if self.phase == "starting" or self._config.on_failure == "stop":
            return False
        if self.phase == "closing":
            return name in self.ended
        workers = [worker for worker in self._workers() if worker != name]
        if name not in self._config.terms.workers or len(workers) < max(1, self._config.min_workers):
            return False
        try:
            self._config.terms.roster(workers)
        except InputError as error:  # an algorithm may be told how its workers are divided
            log.warning("%s", error)
            return False
        return True

    def restarts(self, name: str) -> bool:
        """Whether this node is to be started again if it dies."""
        is_member = name in self.members or name in self._joining
        return self._config.on_failure == "restart" and is_member and self.phase != "closing"

    def lose(self, name: str) -> None:
        """Go on without this node."""
        self._joining.pop(name, None)
        self._fresh.discard(name)
        if name in self.members:
            self.members.discard(name)
            if self.phase != "closing":
                self._regroup()

    def complain(self, name: str, generation: int) -> None:
        """A node has lost a peer: most likely one that is about to be found dead."""
        if generation == self.number and self.phase == "running" and name in self.members:
            self._lost_since_s = min(self._lost_since_s, time.monotonic())

    def welcome(self, name: str) -> bool:
        """A worker wants to join; returns whether it may."""
        most = self._config.max_workers or len(self._config.terms.workers)
        if len(self._workers()) + len(self._joining) >= most:
            return False
        self._joining[name] = False
        self._tell(Welcome(is_late=True), [name])
        return True

    def _workers(self) -> list[str]:
        return [name for name in self._config.terms.workers if name in self.members]

    # ---- to a border ----

    def look(self) -> OwnpaceError | None:
        """See to what is due; returns why the run cannot go on, if it cannot."""
        if time.monotonic() < self._lost_since_s + _GRACE_S:
            return None
        self._lost_since_s = math.inf
        self._in_vain += 1
        if self._in_vain > _MOST_IN_VAIN:
            return OwnpaceError(f"nodes lost each other {self._in_vain} times without an update in between")
        self._regroup()
        return None

    def ask_for_border(self) -> None:
        """Ask all to end this generation in good order."""
        if self.phase == "running":
            self._tell(Stop(is_border=True), self.members)

    def worker_ended(self, name: str) -> bool:
        """A worker has ended; returns whether all have."""
        if self.phase != "running":
            return False
        self.ended.add(name)
        return self.ended >= set(self._workers())

    def release(self) -> None:
        """The run is over."""
        self.phase = "closing"
        self._tell(Release(), self.members)

    def next(self) -> None:
        """All workers have ended, and the run goes on."""
        self._regroup()

    def _regroup(self) -> None:
        self.number += 1
        self.phase = "standing"
        self._lost_since_s = math.inf
        self._border = _Border()
        self.ended = set()
        for name in [name for name, is_ready in self._joining.items() if is_ready]:
            del self._joining[name]
            self.members.add(name)
            self._fresh.add(name)
        log.info("generation %s: %s", self.number, sorted(self.members))
        self._tell(Regroup(self.number), self.members)

    # ---- from a border to the start ----

    def take_standing(self, name: str, standing: Standing) -> None:
        """A node has abandoned its generation."""
        if standing.generation == self.number and self.phase == "standing" and name in self.members:
            self._border.standings[name] = standing
            if self._border.standings.keys() >= self.members:
                self._plan()

    def _plan(self) -> None:
        self.phase = "preparing"
        terms, stood, workers = self._config.terms, self._border.standings, self._workers()
        self.roster = terms.roster(workers)
        # Newcomers have nothing to give; of equals, the first.
        old = [name for name in workers if not stood[name].is_new]
        giver = max(old, key=lambda name: stood[name].version)
        counts = stood[self.roster.servers.members[0].name if terms.num_servers else giver]
        best = stood[giver]
        receivers = [name for name in workers if stood[name].is_new or not self._is_equal(stood[name], best)]
        if counts.version > self._last_version:
            self._in_vain = 0
        self._last_version = counts.version
        plan = Plan(
            self.number, workers, terms.samples, giver, receivers, sorted(self._fresh), counts.used, counts.samples,
            wants_state=False,
        )  # fmt: skip
        self._tell(plan, self.members)

    def _is_equal(self, one: Standing, other: Standing) -> bool:
        if self._config.terms.num_servers:
            return True  # they pull what servers hold
        return (one.version, one.checksums) == (other.version, other.checksums)

    def take_prepared(self, name: str, generation: int, checksums: list[int]) -> None:
        """A node is ready for a generation.

        Raises:
            ReplicasDiffer: The workers do not have the same parameters.
        """
        if name in self._joining:
            self._joining[name] = True
            self.ask_for_border()
            return
        if generation != self.number or self.phase not in ("starting", "preparing"):
            return
        self._border.prepared[name] = checksums
        if self._border.prepared.keys() >= {node.name for node in self.roster.nodes}:
            self._start()

    def _start(self) -> None:
        of_workers = [self._border.prepared[worker.name] for worker in self.roster.workers]
        if any(checksums != of_workers[0] for checksums in of_workers):
            raise ReplicasDiffer(f"the workers' parameters differ at the beginning of generation {self.number}")
        if self.phase == "starting":
            self.zero_s = time.monotonic() + _HEAD_START_S
        self.phase = "running"
        self._fresh.clear()
        self.on_start(self.roster, self._last_version)
        self._tell(Start(self.zero_s, self.number), [node.name for node in self.roster.nodes])
        if any(self._joining.values()):
            self.ask_for_border()


def _ignore(roster: Roster, version: int) -> None:
    pass
