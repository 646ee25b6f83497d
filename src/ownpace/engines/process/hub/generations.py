"""The hub's part in leading a run from one generation to the next: who takes part, and when it begins.

    running ──(a node died)──────────────────────► standing ──(all have said how far they are)──► preparing
       ▲    ──(border: all workers have ended)───►     ▲  ◄──(another node died)──────────────────────│
       └──────────────────(all are prepared)───────────┼──────────────────────────────────────────────┘
    running ──(all workers have ended, and the run is over)──► closing

A worker that is gone is done without; a server or a communicator is started again, the server with what it had a moment
before. Who gives what to whom then is planned in `hub.planning`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ownpace.core.contract.errors import MachineDied, OwnpaceError, ReplicasDiffer
from ownpace.engines.process.hub.config import Elasticity
from ownpace.engines.process.hub.members import Members
from ownpace.engines.process.hub.planning import Planning
from ownpace.engines.process.meet.restarts import Restarts
from ownpace.engines.process.meet.run_state import StateCollector
from ownpace.engines.process.talk.control import Control, Release, Start, Stop, Welcome
from ownpace.engines.process.talk.regrouping import Regroup, RegroupPlan, Standing
from ownpace.engines.roster import Roster

_HEAD_START_S = 0.05
"""How far in the future time zero is when it is announced: the announcement has to reach all nodes."""
_GRACE_S = 2.0
"""How long after the first node that lost a peer its death may be found. Then all connections are made anew."""
_COME_BACK_S = 120.0
"""How long a server or communicator may take to be started again: on a busy machine, importing torch takes a minute."""
_MOST_IN_VAIN = 5
"""How often connections are made anew without a single update in between."""
Phase = Literal["starting", "running", "standing", "preparing", "closing"]
log = logging.getLogger(__name__)


@dataclass
class _Border:
    """What has been said since the last generation ended."""

    standings: dict[str, Standing] = field(default_factory=dict)
    prepared: dict[str, list[int]] = field(default_factory=dict)
    plan: RegroupPlan | None = None


class Generations:
    """Who takes part, and in which generation."""

    def __init__(
        self,
        config: Elasticity,
        tell: Callable[[Control, Iterable[str]], None],
        restarts: Restarts,
        collector: StateCollector,
    ) -> None:
        self.number = 0
        self.phase: Phase = "starting"
        self.roster = config.terms.roster()
        self.members = Members(config)
        self.zero_s = math.inf
        """When time began, by the hub's clock."""
        self.why = "start"
        """Why the latest border was come to."""
        self.wants_state = False
        """Whether the next border in good order makes a checkpoint."""
        self.round_unlike = False
        """Whether the workers' processors do."""
        self.on_plan: Callable[[RegroupPlan, Roster], None] = _ignore
        """Called when a plan has been told: the hub may have something to give, too."""
        self.on_start: Callable[[RegroupPlan | None, Roster], None] = _ignore
        """Called when all are prepared, before they are told to start."""
        self._config = config
        self._tell = tell
        self._restarts = restarts
        self._collector = collector
        self._border = _Border()
        self._lost_since_s = math.inf
        self._standing_since_s = math.inf
        self._in_vain = 0
        self._started = 0
        self._last_version = 0
        self._is_resuming = config.resumed is not None

    @property
    def has_started(self) -> bool:
        """Whether time has begun."""
        return self.zero_s < math.inf

    @property
    def now_s(self) -> float:
        """The run's time; 0 before it begins."""
        return time.monotonic() - self.zero_s if self.has_started else 0.0

    # ---- who is there ----

    def goes_on_without(self, name: str) -> bool:
        """Whether the run goes on if this node is gone."""
        if name not in self.members.there:
            return True
        if self.phase == "starting" or self._config.on_failure == "stop":
            return False
        if self.phase == "closing":
            return self.members.has_ended(name)
        if self._is_worker(name):
            return self.members.can_do_without(name)
        has_state = name not in {server.name for server in self.roster.servers} or self._collector.of(name)
        return bool(has_state) and self._restarts.can(name)

    def can_let_go(self, names: Iterable[str]) -> bool:
        """Whether the run goes on if these nodes, which are there, leave it in good order."""
        may = self.phase != "starting" and self._config.on_failure != "stop"
        return may and self.members.can_do_without(*names)

    def _is_worker(self, name: str) -> bool:
        return name in self._config.terms.workers

    def restarts(self, name: str) -> bool:
        """Whether this node is to be started again if it dies."""
        # Also one that has not even said that it is there: it was started again, and died at once.
        return self.phase != "closing" and (self._config.on_failure == "restart" or not self._is_worker(name))

    def lose(self, *names: str) -> None:
        """Go on without these nodes."""
        gone = [name for name in names if self.members.lose(name)]
        if gone and self.phase != "closing":
            self._regroup("death" if any(map(self._is_worker, gone)) else "restart")

    def complain(self, name: str, generation: int) -> None:
        """A node has lost a peer: most likely one that is about to be found dead."""
        if generation == self.number and self.phase == "running" and name in self.members.there:
            self._lost_since_s = min(self._lost_since_s, time.monotonic())

    def welcome(self, name: str) -> bool:
        """A worker wants to join; returns whether it may."""
        may = self.members.welcome(name)
        if may:
            self._tell(Welcome(is_late=True), [name])
        return may

    # ---- to a border ----

    def look(self) -> OwnpaceError | None:
        """See to what is due; returns why the run cannot go on, if it cannot."""
        now = time.monotonic()
        if self.phase == "standing" and now > self._standing_since_s + _COME_BACK_S and self.members.missing():
            return MachineDied(f"{', '.join(self.members.missing())} did not come back within {_COME_BACK_S:g} s")
        if now < self._lost_since_s + _GRACE_S:
            return None
        self._lost_since_s = math.inf
        self._in_vain += 1
        if self._in_vain > _MOST_IN_VAIN:
            return MachineDied(f"nodes lost each other {self._in_vain} times without an update in between")
        self._regroup("death")
        return None

    def ask_for_border(self) -> None:
        """Ask all to end this generation in good order."""
        if self.phase == "running":
            self._tell(Stop(is_border=True), sorted(self.members.there))

    def worker_ended(self, name: str, *, is_through: bool) -> bool:
        """A worker has ended; returns whether all have."""
        return self.phase == "running" and self.members.end(name, is_through=is_through)

    def release(self) -> None:
        """The run is over."""
        self.phase = "closing"
        self._tell(Release(), sorted(self.members.there))

    def next(self, leaving: Sequence[str] = ()) -> None:
        """All workers have ended, and the run goes on: without those that leave."""
        for name in leaving:
            self.members.lose(name)
        self._regroup("join" if self.members.some_can_join else "leave" if leaving else "checkpoint")

    def _regroup(self, why: str) -> None:
        self.number += 1
        self.phase = "standing"
        self.why = why
        self._lost_since_s = math.inf
        self._standing_since_s = time.monotonic()
        self._border = _Border()
        self.members.regroup()
        log.info("generation %s (%s): %s", self.number, why, sorted(self.members.there))
        self._tell(Regroup(self.number), sorted(self.members.there))

    # ---- from a border to the start ----

    def take_standing(self, name: str, standing: Standing) -> None:
        """A node has abandoned its generation."""
        if standing.generation == self.number and self.phase == "standing" and name in self.members.there:
            self._border.standings[name] = standing
            roster = self._config.terms.roster(self.members.workers)
            # A server or communicator that is being started again makes a new attempt when it is there.
            if self._border.standings.keys() >= {*self.members.there, *(node.name for node in roster.nodes)}:
                self._plan(roster)

    def _plan(self, roster: Roster) -> None:
        self.phase = "preparing"
        self.roster = roster
        config, fresh = self._config, sorted(self.members.fresh)
        planning = Planning(config.terms, self._collector, self.number, self._started, self._border.standings)
        if self._is_resuming:
            assert config.resumed is not None
            plan = planning.resume(config.resumed, roster, fresh)
        else:
            in_order = self.why in ("join", "leave", "checkpoint")
            plan = planning.plan(roster, fresh, wants_state=self.wants_state and in_order)
        plan = replace(plan, round_unlike=self.round_unlike)
        self._in_vain = 0 if plan.version > self._last_version else self._in_vain
        self._last_version = plan.version
        self._border.plan = plan
        self._tell(plan, sorted(self.members.there))
        self.on_plan(plan, roster)

    def take_prepared(self, name: str, generation: int, checksums: list[int]) -> None:
        """A node is ready for a generation.

        Raises:
            ReplicasDiffer: The workers do not have the same parameters.
        """
        if name not in self.members.there:
            self._take_newcomer(name)
        elif generation == self.number and self.phase in ("starting", "preparing"):
            self._border.prepared[name] = checksums
            if self._border.prepared.keys() >= {node.name for node in self.roster.nodes}:
                self._start()

    def _take_newcomer(self, name: str) -> None:
        if not self.members.is_ready(name):
            return  # it has not been welcomed
        if self._is_worker(name):
            self._let_join()
        else:  # the others wait for it
            self._regroup("restart")

    def _start(self) -> None:
        if self._is_resuming and self._border.plan is None:
            self._regroup("resume")  # all are there, and about to get what the checkpoint has
            return
        of_workers = [self._border.prepared[worker.name] for worker in self.roster.workers]
        if any(checksums != of_workers[0] for checksums in of_workers):
            raise ReplicasDiffer(f"the workers' parameters differ at the beginning of generation {self.number}")
        if self.zero_s == math.inf:
            resumed = self._config.resumed
            self.zero_s = time.monotonic() + _HEAD_START_S - (0.0 if resumed is None else resumed.time_s)
        self.phase = "running"
        self._is_resuming = False
        self.members.fresh.clear()
        self._started = self.number
        self.on_start(self._border.plan, self.roster)
        self._tell(Start(self.zero_s, self.number), [node.name for node in self.roster.nodes])
        if self.members.some_can_join:
            self._let_join()

    def _let_join(self) -> None:
        """Some worker is ready to join."""
        if not self._config.joins_by_force:
            self.ask_for_border()
        elif self.phase == "running":
            self._regroup("join")


def _ignore(plan: RegroupPlan | None, roster: Roster) -> None:
    pass
