"""The hub hears all nodes, has the model evaluated, and says when to start and when the run is over.

It runs in the launcher, or in a thread next to rank 0. Training does not pass through it: if it is slow, no node waits.
The conversation that it leads is drawn in `talk.control`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from torch import Tensor

from ownpace.core.contract.errors import (
    InputError,
    NodeFailed,
    OwnpaceError,
    ReplicasDiffer,
    SharedMemoryError,
    WireError,
)
from ownpace.engines.ledger import Ledger
from ownpace.engines.process.hub.checks import HubChecks
from ownpace.engines.process.hub.config import HubConfig
from ownpace.engines.process.hub.membership import Membership
from ownpace.engines.process.hub.parts import HubParts, tell
from ownpace.engines.process.hub.states import HubStates
from ownpace.engines.process.presence.roll import differences, do_not_fit
from ownpace.engines.process.talk.control import (
    ClockAnswer,
    ClockRequest,
    Control,
    Ended,
    Failed,
    Finished,
    GiveUp,
    Goodbye,
    Hello,
    Leaving,
    Prepared,
    Refuse,
    Report,
    Snapshot,
    Stop,
    Welcome,
    WorkerBuffers,
)
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.regrouping import (
    Lost,
    RegroupPlan,
    Standing,
    StateInMemory,
    StateOutline,
    StateTensor,
)
from ownpace.engines.process.talk.replica_control import Apart, Checksums
from ownpace.engines.process.talk.wire import blamed, unpack_from
from ownpace.engines.process.talk.wire_header import Limits
from ownpace.engines.roster import Roster

log = logging.getLogger(__name__)


class Hub:
    """Leads the conversation with all nodes."""

    def __init__(self, mailbox: Mailbox, roster: Roster, config: HubConfig) -> None:
        self._parts = parts = HubParts.of(mailbox, roster, config)
        self.complaints, self.journal, self.evaluator = parts.complaints, parts.journal, parts.evaluator
        self.membership = Membership(parts)
        self._states = HubStates(parts, self.membership.updates_of_lost)
        self._generations = parts.generations
        self._generations.on_plan = self._states.give
        self._generations.on_start = self._begin_generation
        self._ledger = Ledger(self.journal.emit, config.goal, stop_at_target=config.stop_at_target)
        num_buffers = 0 if self.evaluator is None else self.evaluator.num_buffers
        self._limits = Limits(roster.shards, max(roster.workers.members[0].shard.stop, num_buffers))
        self._checks = HubChecks(roster, len(config.layers), num_buffers)
        self._told_to_stop = self._refused = self._has_finished = False
        self._stopped = -1
        """The latest generation that was told to stop."""

    @property
    def has_started(self) -> bool:
        """Whether time has begun."""
        return self._parts.has_started

    @property
    def is_done(self) -> bool:
        """Whether all nodes have ended, and all is evaluated."""
        idle = self.evaluator is None or not self.evaluator.is_busy
        return idle and all(self.journal.nodes[name].has_finished for name in self.members)

    @property
    def members(self) -> set[str]:
        """The nodes that are there."""
        return self._parts.members

    def begin(self) -> None:
        """Write the first record, and evaluate the model before training."""
        self.journal.begin()
        if self.evaluator is not None and self._parts.config.elasticity.resumed is None:
            self.evaluator.begin()

    def look(self, timeout_s: float) -> None:
        """Take in what has arrived; wait for it at most this long."""
        wait_s: float | None = timeout_s
        while True:
            try:
                arrived = self._parts.mailbox.receive(wait_s)
                if arrived is None:
                    break
                wait_s = 0.0
                name, packet = arrived[0], unpack_from(*arrived, self._limits)
                # Only nodes of the roster are heard, and only about the run itself.
                if packet.control is not None and name in self.journal.nodes and self._is_heard(name, packet.control):
                    self._heed(name, packet.control, packet.body if isinstance(packet.body, Tensor) else None)
            except (WireError, SharedMemoryError) as error:  # most likely its sender died while writing
                wait_s = 0.0
                self.complaints.add(error)
        self._take_scores(final=False)
        self.membership.look()
        self._states.look()
        self._look_for_stop()
        trouble = self._generations.look()
        if trouble is not None:
            self.complaints.add(trouble)

    def _begin_generation(self, plan: RegroupPlan | None, roster: Roster) -> None:
        self._parts.mailbox.waits = False  # from now on nodes come and go
        self._states.begin_generation(plan, roster)

    def _is_heard(self, name: str, control: Control) -> bool:
        """Whether a node takes part, or wants to: what others say belongs to a generation without them."""
        return name in self.members or isinstance(control, Hello | Prepared | ClockRequest | Failed | Leaving)

    def _heed(self, name: str, control: Control, body: Tensor | None) -> None:
        try:
            self._checks.check(control, body)
            self._take(name, control, body)
        except WireError as error:
            raise blamed(name, error) from None

    def _take(self, name: str, control: Control, body: Tensor | None) -> None:
        match control:
            case Report():
                self.journal.take(name, control)
                if self.has_started:
                    self.journal.show_progress()
            case Snapshot() if body is not None and self.evaluator is not None:
                self.evaluator.take(control, body)
            case WorkerBuffers() if body is not None and self.evaluator is not None:
                self.evaluator.take_buffers(name, body)
            case Hello() if self._generations.phase != "starting":
                self.membership.join(name, control)
            case Hello():
                self.journal.nodes[name].hello = control
                self._compare()
            case ClockRequest():
                self._parts.tell(ClockAnswer(time.monotonic()), name)
            case Prepared(generation, checksums):
                self._check_replicas(partial(self.membership.take_prepared, name, generation, checksums))
            case Checksums(version, values):
                self._check_replicas(partial(self.journal.replicas.take, name, version, values))
            case Apart():
                self.journal.apart.add(control.version, control.apart)
                self._check_replicas(partial(self.journal.replicas.take_apart, name, control))
            case Ended():
                self._take_end(name, control)
            case Finished():
                self.journal.nodes[name].has_finished = True
            case Leaving():
                self.membership.take_leaving(name, control)
            case Lost(generation, message):
                log.info("%s: %s", name, message)
                self._generations.complain(name, generation)
            case Standing():
                self._generations.take_standing(name, control)
            case StateOutline() | StateTensor() | StateInMemory():
                self._parts.collector.take(name, control, body)
            case Failed():
                self.membership.take_failure(name, control)
            case _:
                log.debug("%s from %s is not for the hub", control, name)

    def _take_end(self, name: str, ended: Ended) -> None:
        """A worker has ended: with the last one, the generation has, and perhaps the run."""
        self._check_replicas(partial(self.journal.replicas.take_last, name, ended.checksums))
        generations = self._generations
        if generations.worker_ended(name, is_through=ended.is_through):
            is_over = self._told_to_stop or self._parts.config.is_spent(ended.samples, generations.now_s)
            if is_over or generations.members.is_through:
                generations.release()
            else:
                self.membership.dismiss(leaving := self.membership.departures.at_border())
                generations.next(leaving)

    def _compare(self) -> None:
        """Once all workers have said what they are about to train: refuse them if they differ."""
        said = [self.journal.nodes[worker.name].hello for worker in self._parts.roster.workers]
        known = [hello for hello in said if hello is not None]
        if len(known) < len(said):
            return
        found = differences([hello.fingerprint for hello in known])
        if not found:
            self._generations.round_unlike = len({hello.rounding for hello in known}) > 1
            self._parts.tell(Welcome(round_unlike=self._generations.round_unlike))
            return
        error = InputError(do_not_fit(found))
        self._refused = True
        self._parts.tell(Refuse(str(error)))
        self.complaints.add(error)

    def _check_replicas(self, take: Callable[[], None]) -> None:
        try:
            take()
        except ReplicasDiffer as error:
            self.complaints.add(error)

    def _take_scores(self, *, final: bool) -> None:
        if self.evaluator is None:
            return
        for snapshot, score in self.evaluator.close() if final else self.evaluator.scores(wait=False):
            if isinstance(score, NodeFailed):
                self.complaints.add(score)
                continue
            try:
                if self._ledger.evaluated(score, snapshot.t, snapshot.samples, snapshot.updates):
                    self.stop()
            except OwnpaceError as error:
                self.complaints.add(error)

    def stop(self, *, with_checkpoint: bool = False) -> None:
        """Ask all nodes to end, as if the budget were spent. With a checkpoint first, it is called until they do."""
        self.membership.departures.is_moot = True
        if not self._told_to_stop and self.has_started and not (with_checkpoint and self._states.last_comes()):
            self._told_to_stop = True

    def _look_for_stop(self) -> None:
        """Say that the run ends, once in each generation that begins: between two of them nobody listens for it."""
        generations = self._generations
        if self._told_to_stop and generations.phase == "running" and self._stopped < generations.number:
            self._stopped = generations.number
            self._parts.tell(Stop())

    def finish(self, error: OwnpaceError | None) -> None:
        """Evaluate what is left, and write the last record."""
        if self._has_finished:  # once, even if what came after it failed
            return
        self._has_finished = True
        # Scores first: an evaluation that comes after the last record would be lost.
        self._take_scores(final=True)
        self.journal.end(self._ledger, self._generations.now_s, error, is_done=self.is_done)

    def say_goodbye(self) -> None:
        """Tell all nodes how the run ended, and let them end."""
        self._parts.tell(Goodbye(self.journal.summary_lines))

    def give_up(self, error: OwnpaceError) -> None:
        """Tell every node that can be reached that the run has failed."""
        if self._refused:
            return  # they know why
        reached = [name for name in self.members if self._parts.mailbox.knows(name)]
        tell(self._parts.mailbox, GiveUp(error.code, str(error)), reached)
