"""What the hub gives and keeps of a run's state: a checkpoint to go on from, snapshots of servers, new checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from ownpace.engines.process.hub.late_watch import LateWatch
from ownpace.engines.process.hub.parts import HubParts
from ownpace.engines.process.meet.run_state import states_to_give
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.talk.regrouping import RegroupPlan
from ownpace.engines.process.talk.states import give
from ownpace.engines.roster import Roster

_LAST_CHECKPOINT_S = 6.0
"""How long an interrupted run may take to come to a border for its last checkpoint."""
_CHECKPOINT_EVERY_S = 60.0
"""How often a checkpoint is made where no number of samples is given."""
log = logging.getLogger(__name__)


class HubStates:
    """Gives states when a generation is planned, and makes checkpoints when one begins."""

    def __init__(self, parts: HubParts, updates_of_lost: Mapping[str, int]) -> None:
        """`updates_of_lost`: of each node that was lost, how many updates it had made."""
        self._parts = parts
        self._updates_of_lost = updates_of_lost
        self._lost_updates = 0
        self._next_s = math.inf
        self._last_until_s: float | None = None
        """Of an interrupted run: until when its last checkpoint is waited for."""
        self._late = LateWatch()

    @property
    def _makes_checkpoints(self) -> bool:
        return self._parts.config.elasticity.on_checkpoint is not None

    @property
    def _by_samples(self) -> bool:
        """Whether checkpoints are due by the number of samples, which nodes count, and not by the clock."""
        return bool(self._parts.config.elasticity.terms.checkpoint_every)

    def look(self) -> None:
        """Ask for a border when a checkpoint is due by the clock, and say who keeps the others waiting there."""
        generations = self._parts.generations
        line = self._late.look(generations.members.awaited)
        if line is not None:
            log.warning("%s", line)
        if not self._makes_checkpoints or self._by_samples or generations.wants_state:
            return
        if time.monotonic() > self._next_s and generations.phase == "running":
            self._ask()

    def _ask(self) -> None:
        self._parts.generations.wants_state = True
        self._parts.generations.ask_for_border()

    def give(self, plan: RegroupPlan | None, roster: Roster) -> None:
        """Give what the hub alone has: a checkpoint to all, a snapshot to a server that was started again."""
        parts, config = self._parts, self._parts.config.elasticity
        assert plan is not None
        for name, state in states_to_give(plan, roster, config.resumed, parts.collector):
            if plan.giver != HUB:
                self._lost_updates = max(0, self._updates_of_lost.get(name, 0) - plan.version)
                log.warning("%s goes on from its latest snapshot: %s updates are lost", name, self._lost_updates)
            give(parts.mailbox, name, state, plan.generation, config.terms.layout.size)

    def begin_generation(self, plan: RegroupPlan | None, roster: Roster) -> None:
        """All are prepared: nothing is in flight, and every node has what is planned."""
        parts, generations = self._parts, self._parts.generations
        lost, self._lost_updates = self._lost_updates, 0
        parts.journal.begin_generation(roster, plan, generations.why, generations.now_s, lost)
        if plan is not None and plan.wants_state:
            self._make_checkpoint(plan, roster)
        generations.wants_state = self._makes_checkpoints and self._by_samples
        if plan is None or plan.wants_state or self._next_s == math.inf:
            self._next_s = time.monotonic() + _CHECKPOINT_EVERY_S

    def _make_checkpoint(self, plan: RegroupPlan, roster: Roster) -> None:
        parts = self._parts
        on_checkpoint = parts.config.elasticity.on_checkpoint
        if on_checkpoint is None:
            return
        number, now, tallies = parts.journal.generation, parts.generations.now_s, parts.journal.tallies()
        on_checkpoint(parts.collector.run_state(roster, plan.giver, number, now, tallies))
        if self._last_until_s is not None:
            self._last_until_s = -math.inf  # it has come

    def last_comes(self) -> bool:
        """Ask for a last checkpoint, once; returns whether it is worth waiting for."""
        if not self._makes_checkpoints:
            return False
        now = time.monotonic()
        if self._last_until_s is None and self._parts.generations.phase == "running":
            self._last_until_s = now + _LAST_CHECKPOINT_S
            self._ask()
        return self._last_until_s is None or now < self._last_until_s
