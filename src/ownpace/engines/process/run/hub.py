"""The hub hears all nodes, has the model evaluated, and says when to start and when the run is over.

It runs in the launcher, or in a thread next to rank 0. Training does not pass through it: if it is slow, no node waits.
The conversation that it leads is drawn in `talk.control`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
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
from ownpace.engines.process.run.complaints import Complaints
from ownpace.engines.process.run.hub_checks import HubChecks
from ownpace.engines.process.run.journal import HubConfig, Journal
from ownpace.engines.process.run.roll import differences, do_not_fit
from ownpace.engines.process.talk.control import (
    Checksums,
    ClockAnswer,
    ClockRequest,
    Control,
    Ended,
    Failed,
    GiveUp,
    Goodbye,
    Hello,
    Prepared,
    Refuse,
    Release,
    Report,
    Snapshot,
    Start,
    Stop,
    Welcome,
    WorkerBuffers,
)
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.wire import Limits, Packet, blamed, unpack_from
from ownpace.engines.roster import Roster

_HEAD_START_S = 0.05
"""How far in the future time zero is when it is announced: the announcement has to reach all nodes."""
log = logging.getLogger(__name__)


class Hub:
    """Leads the conversation with all nodes."""

    def __init__(self, mailbox: Mailbox, roster: Roster, config: HubConfig) -> None:
        self.mailbox = mailbox
        self.complaints = Complaints()
        self.journal = Journal(roster, config)
        self.evaluator = None if config.make_evaluator is None else config.make_evaluator()
        self._ledger = Ledger(self.journal.emit, config.target, stop_at_target=config.stop_at_target)
        self._roster = roster
        self._config = config
        num_buffers = 0 if self.evaluator is None else self.evaluator.num_buffers
        self._limits = Limits(roster.shards, max(roster.workers.members[0].shard.stop, num_buffers))
        self._checks = HubChecks(roster, len(config.layers), num_buffers)
        self._zero_s: float | None = None
        self._told_to_stop = False
        self._refused = False
        self._has_finished = False

    @property
    def has_started(self) -> bool:
        """Whether time has begun."""
        return self._zero_s is not None

    @property
    def is_done(self) -> bool:
        """Whether all nodes have ended, and all is evaluated."""
        idle = self.evaluator is None or not self.evaluator.is_busy
        return idle and all(node.has_ended for node in self.journal.nodes.values())

    def begin(self) -> None:
        """Write the first record, and evaluate the model before training."""
        self.journal.begin()
        if self.evaluator is not None:
            self.evaluator.begin()

    def look(self, timeout_s: float) -> None:
        """Take in what has arrived; wait for it at most this long."""
        wait_s: float | None = timeout_s
        while True:
            try:
                arrived = self.mailbox.receive(wait_s)
                if arrived is None:
                    break
                wait_s = 0.0
                name, packet = arrived[0], unpack_from(*arrived, self._limits)
                # Only nodes are heard here, and only about the run itself.
                if packet.control is not None and name in self.journal.nodes:
                    self._heed(name, packet.control, packet.body if isinstance(packet.body, Tensor) else None)
            except (WireError, SharedMemoryError) as error:  # most likely its sender died while writing
                wait_s = 0.0
                self.complaints.add(error)
        self._take_scores(final=False)

    def _heed(self, name: str, control: Control, body: Tensor | None) -> None:
        try:
            self._checks.check(control, body)
            self._take(name, control, body)
        except WireError as error:
            raise blamed(name, error) from None

    def _take(self, name: str, control: Control, body: Tensor | None) -> None:
        node = self.journal.nodes[name]
        match control:
            case Report():
                self.journal.take(name, control)
                if self.has_started:
                    self.journal.show_progress()
            case Snapshot() if body is not None and self.evaluator is not None:
                self.evaluator.take(control, body)
            case WorkerBuffers() if body is not None and self.evaluator is not None:
                self.evaluator.take_buffers(name, body)
            case Hello(fingerprint):
                node.fingerprint = fingerprint
                self._compare()
            case ClockRequest():
                self._tell(ClockAnswer(time.monotonic()), [name])
            case Prepared():
                node.is_prepared = True
                if all(each.is_prepared for each in self.journal.nodes.values()):
                    self._zero_s = time.monotonic() + _HEAD_START_S
                    self._tell(Start(self._zero_s))
            case Checksums(version, values):
                self._compare_replicas(partial(self.journal.replicas.take, name, version, values))
            case Ended(checksums):
                node.has_ended = True
                self._compare_replicas(partial(self.journal.replicas.take_last, name, checksums))
                if all(self.journal.nodes[worker.name].has_ended for worker in self._roster.workers):
                    # Not before: some worker may still need its servers.
                    helpers = (*self._roster.servers, *self._roster.communicators)
                    self._tell(
                        Release(), [each.name for each in helpers if not self.journal.nodes[each.name].has_ended]
                    )
            case Failed():
                self.complaints.add(control.error(name))
            case _:
                log.debug("%s from %s is not for the hub", control, name)

    def _compare(self) -> None:
        """Once all workers have said what they are about to train: refuse them if they differ."""
        prints = [self.journal.nodes[worker.name].fingerprint for worker in self._roster.workers]
        known = [fingerprint for fingerprint in prints if fingerprint is not None]
        if len(known) < len(prints):
            return
        found = differences(known)
        if not found:
            self._tell(Welcome())
            return
        error = InputError(do_not_fit(found))
        self._refused = True
        self._tell(Refuse(str(error)))
        self.complaints.add(error)

    def _compare_replicas(self, take: Callable[[], None]) -> None:
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

    def _tell(self, control: Control, names: Iterable[str] | None = None) -> None:
        """Tell these nodes, or all of them."""
        log.info("%s to %s", type(control).__name__, "all" if names is None else names)
        for name in self.journal.nodes if names is None else names:
            self.mailbox.send(name, Packet(control=control))

    def stop(self) -> None:
        """Ask all nodes to end, as if the budget were spent."""
        if not self._told_to_stop and self.has_started:
            self._told_to_stop = True
            self._tell(Stop())

    def finish(self, error: OwnpaceError | None) -> None:
        """Evaluate what is left, and write the last record."""
        if self._has_finished:  # once, even if what came after it failed
            return
        self._has_finished = True
        # Scores first: an evaluation that comes after the last record would be lost.
        self._take_scores(final=True)
        now = 0.0 if self._zero_s is None else time.monotonic() - self._zero_s
        self.journal.end(self._ledger, now, error, is_done=self.is_done)

    def say_goodbye(self) -> None:
        """Tell all nodes how the run ended, and let them end."""
        self._tell(Goodbye(self.journal.summary_lines))

    def give_up(self, error: OwnpaceError) -> None:
        """Tell every node that can be reached that the run has failed."""
        if self._refused:
            return  # they know why
        self._tell(GiveUp(error.code, str(error)), [name for name in self.journal.nodes if self.mailbox.knows(name)])
