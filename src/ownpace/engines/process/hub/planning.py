"""Who gives what to whom at the beginning of a generation: it follows from how far each node says that it is.

The survivor with most updates has what counts: no update that any of them has made is lost. A server that was started
again is as far as its latest snapshot, which the hub has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ownpace.engines.process.meet.run_state import ResumedState, StateCollector
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.regrouping import RegroupPlan, Standing
from ownpace.engines.roster import Roster


@dataclass(frozen=True)
class Planning:
    """What a plan is made from."""

    terms: RunTerms
    collector: StateCollector
    number: int
    """Of the generation that begins."""
    started: int
    """Of the latest one that has started."""
    stood: Mapping[str, Standing]
    """What each node says."""

    def plan(self, roster: Roster, fresh: Sequence[str], *, wants_state: bool) -> RegroupPlan:
        """The generation of these nodes; `fresh` are those among them that another process was before."""
        workers, servers = [worker.name for worker in roster.workers], [server.name for server in roster.servers]
        new = [node.name for node in roster.nodes if self.stood[node.name].is_new]
        # Newcomers have nothing to give; of equals, the first. In a user's script, a loop is over for all as soon
        # as it is for one: that one has made all its updates.
        known = [name for name in workers if name not in new]
        giver = max(known, key=lambda name: (self.stood[name].stage, self.stood[name].version))
        receivers = [name for name in workers if name in new or not self._is_equal(name, giver)]
        receivers += [name for name in servers if name in new]
        counted = [self._standing(name) for name in servers or [giver]]
        # A sample counts as soon as one server has learnt from it: that one would learn from it twice. A server
        # that has not heard of the running loop yet has learnt from nothing in it.
        in_it = [each for each in counted if each.stage == self.stood[giver].stage]
        # One that was started again from a moment before the latest generation has used nothing of that.
        used = [max(column) for column in zip_longest(*(each.used for each in in_it), fillvalue=0)]
        version, samples = counted[0].version, counted[0].samples
        return RegroupPlan(
            self.number, workers, self._budget(samples), giver, receivers, list(fresh), used, samples, version,
            wants_state=wants_state,
        )  # fmt: skip

    def resume(self, resumed: ResumedState, roster: Roster, fresh: Sequence[str]) -> RegroupPlan:
        """The first generation of a run that goes on: the hub gives what the checkpoint has."""
        workers, samples = [worker.name for worker in roster.workers], resumed.samples
        receivers = [*workers, *(server.name for server in roster.servers)]
        return RegroupPlan(
            self.number, workers, self._budget(samples), HUB, receivers, list(fresh), [], samples, resumed.version,
            wants_state=False,
        )  # fmt: skip

    def _budget(self, samples: int) -> float | None:
        left = self.terms.budget_after(samples)
        return None if left == math.inf else left

    def _standing(self, name: str) -> Standing:
        """How far a node is; of a server that was started again, how far its snapshot is."""
        standing, snapshot = self.stood[name], self.collector.of(name)
        if not standing.is_new or snapshot is None:
            return standing
        counts = snapshot["counts"]
        # Of an earlier generation: whose samples they were does not matter any more.
        used = list(counts["used"]) if snapshot["generation"] == self.started else []
        stage = snapshot["stage"]
        return Standing(self.number, True, counts["version"], counts["samples"], counts["ahead"], used, [], stage)

    def _is_equal(self, one: str, other: str) -> bool:
        if self.terms.num_servers:
            return True  # they pull what servers hold
        return (self.stood[one].version, self.stood[one].checksums) == (
            self.stood[other].version,
            self.stood[other].checksums,
        )
