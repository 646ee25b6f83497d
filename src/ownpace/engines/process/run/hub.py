"""The hub hears all nodes, has the model evaluated, and says when to start and when the run is over.

It runs in the launcher, or in a thread next to rank 0. Training does not pass through it: if it is slow, no node waits.
The conversation that it leads is drawn in `talk.control`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor

from ownpace.core.contract.errors import (
    InputError,
    MachineDied,
    NodeFailed,
    OwnpaceError,
    PeerLost,
    ReplicasDiffer,
    SharedMemoryError,
    WireError,
)
from ownpace.engines.ledger import Ledger
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.run.complaints import Complaints
from ownpace.engines.process.run.generations import Generations
from ownpace.engines.process.run.hub_checks import HubChecks
from ownpace.engines.process.run.journal import HubConfig, Journal
from ownpace.engines.process.run.restarts import Restarts
from ownpace.engines.process.run.roll import differences, do_not_fit
from ownpace.engines.process.run.run_state import StateCollector, states_to_give
from ownpace.engines.process.run.silence import SilenceWatch
from ownpace.engines.process.talk.control import (
    Checksums,
    ClockAnswer,
    ClockRequest,
    Control,
    Ended,
    Failed,
    Finished,
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
from ownpace.engines.process.talk.regrouping import DeclaredDead, Lost, Plan, Standing, StateOutline, StateTensor
from ownpace.engines.process.talk.states import packets
from ownpace.engines.process.talk.wire import Limits, Packet, blamed, unpack_from
from ownpace.engines.roster import Roster

_HEAD_START_S = 0.05
"""How far in the future time zero is when it is announced: the announcement has to reach all nodes."""
_LAST_CHECKPOINT_S = 6.0
"""How long an interrupted run may take to come to a border for its last checkpoint."""
_CHECKPOINT_EVERY_S = 60.0
"""How often a checkpoint is made where no number of samples is given."""
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
        self._stopped = -1
        self._last_checkpoint_until_s: float | None = None
        self._refused = False
        self._has_finished = False
        self.restarts = Restarts()
        self.on_join: Callable[[int], None] = _ignore
        """Called with the place in the fleet of a worker that was started again or is back, before it is let in."""
        self._silence = SilenceWatch(mailbox)
        self._collector = StateCollector()
        self._had: dict[str, int] = {}
        self._lost_updates = 0
        self._lost: set[str] = set()
        self._next_checkpoint_s = math.inf
        self._elastic: Generations | None = None
        if config.elasticity is not None:
            self._elastic = Generations(config.elasticity, self._tell, self.restarts, self._collector)
            self._elastic.on_plan = self._give_states
            self._elastic.on_start = self._begin_generation

    @property
    def has_started(self) -> bool:
        """Whether time has begun."""
        return self._zero_s is not None

    @property
    def is_done(self) -> bool:
        """Whether all nodes have ended, and all is evaluated."""
        idle = self.evaluator is None or not self.evaluator.is_busy
        return idle and all(self.journal.nodes[name].has_finished for name in self.members)

    @property
    def members(self) -> set[str]:
        """The nodes that are there."""
        return set(self.journal.nodes) if self._elastic is None else self._elastic.members

    def begin(self) -> None:
        """Write the first record, and evaluate the model before training."""
        self.journal.begin()
        is_resumed = self._config.elasticity is not None and self._config.elasticity.resumed is not None
        if self.evaluator is not None and not is_resumed:
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
                # Only nodes of the roster are heard, and only about the run itself.
                if packet.control is not None and name in self.journal.nodes and self._is_heard(name, packet.control):
                    self._heed(name, packet.control, packet.body if isinstance(packet.body, Tensor) else None)
            except (WireError, SharedMemoryError) as error:  # most likely its sender died while writing
                wait_s = 0.0
                self.complaints.add(error)
        self._take_scores(final=False)
        self.restarts.look()
        self._look_for_silence()
        self._look_for_checkpoint()
        self._look_for_stop()
        trouble = None if self._elastic is None else self._elastic.look()
        if trouble is not None:
            self.complaints.add(trouble)

    def lose(self, error: OwnpaceError) -> None:
        """A node is gone: go on without it, or end."""
        name, elastic = error.blame, self._elastic
        self._silence.forget(name)
        if elastic is None or not elastic.goes_on_without(name):
            self.complaints.add(self._as_cause(error))
            return
        restarts = elastic.restarts(name) and self.restarts.ask(name)
        if name not in elastic.members:
            elastic.lose(name)  # it may have been about to join
            return
        self._warn(error, restarts=restarts)
        if isinstance(error, PeerLost):
            # It may only be stopped, or cut off: this waits on its line until it is back.
            self._tell(DeclaredDead(), [name])
        else:
            self.mailbox.drop(name)
        self.complaints.forget()
        self._lost.add(name)
        if self.evaluator is not None:
            self.evaluator.forget(name)
        self.journal.lose(name, self._now())
        self._had[name] = self.journal.nodes[name].totals.updates
        elastic.lose(name)

    def _as_cause(self, error: OwnpaceError) -> OwnpaceError:
        """A node that does not answer is why the run ends, where that is decided here: too few workers, say."""
        config = self._config.elasticity
        if config is None or config.on_failure == "stop" or not isinstance(error, PeerLost):
            return error
        cause = MachineDied(f"{str(error).partition(';')[0]}; the others cannot go on without it")
        cause.blame = error.blame
        return cause

    def newly_lost(self) -> set[int]:
        """The places in the fleet of workers that were lost since the last time."""
        lost, self._lost = self._lost, set()
        return {worker.index for worker in self._roster.workers if worker.name in lost}

    def lose_ranks(self, gone: Iterable[int]) -> None:
        """Ranks are gone, as their own lines say."""
        for rank in gone:
            name = self._roster.workers.members[rank].name
            if self._elastic is not None and self.has_started and name in self._elastic.members | self._elastic.joining:
                error = PeerLost(f"{name} is gone: its line to rank 0 has ended")
                error.blame = name
                self.lose(error)

    def _warn(self, error: OwnpaceError, *, restarts: bool) -> None:
        then = "it is started again, and the others go on" if restarts else "the others go on"
        log.warning("%s; %s", str(error).partition(";")[0], then)

    def _look_for_checkpoint(self) -> None:
        """Ask for a border when a checkpoint is due by the clock."""
        config, elastic = self._config.elasticity, self._elastic
        if config is None or elastic is None or config.on_checkpoint is None or config.terms.checkpoint_every:
            return
        if time.monotonic() > self._next_checkpoint_s and not elastic.wants_state and elastic.phase == "running":
            elastic.wants_state = True
            elastic.ask_for_border()

    def _look_for_silence(self) -> None:
        if self._elastic is not None and self.has_started:
            for gone in self._silence.found():
                self.lose(gone)

    def _give_states(self, plan: Plan | None, roster: Roster) -> None:
        """Give what this hub alone has: a checkpoint to all, a snapshot to a server that was started again."""
        config = self._config.elasticity
        assert plan is not None
        assert config is not None
        for name, state in states_to_give(plan, roster, config.resumed, self._collector):
            if plan.giver != HUB:
                self._lost_updates = max(0, self._had.get(name, 0) - plan.version)
                log.warning("%s goes on from a moment before: %s updates are lost", name, self._lost_updates)
            for packet in packets(state, plan.generation, config.terms.layout.size):
                self.mailbox.send(name, packet)

    def _begin_generation(self, plan: Plan | None, roster: Roster) -> None:
        """All are prepared: nothing is in flight, and every node has what is planned."""
        elastic, config = self._elastic, self._config.elasticity
        assert elastic is not None
        assert config is not None
        self._zero_s = elastic.zero_s
        self.mailbox.waits = False  # from now on nodes come and go
        lost, self._lost_updates = self._lost_updates, 0
        self.journal.begin_generation(roster, plan, elastic.why, self._now(), lost)
        if plan is not None and plan.wants_state and config.on_checkpoint is not None:
            state = self._collector.run_state(
                roster, plan.giver, self.journal.generation, self._now(), self.journal.tallies()
            )
            config.on_checkpoint(state)
            if self._last_checkpoint_until_s is not None:
                self._last_checkpoint_until_s = -math.inf  # it has come
        elastic.wants_state = config.on_checkpoint is not None and config.terms.checkpoint_every is not None
        if plan is None or plan.wants_state or self._next_checkpoint_s == math.inf:
            self._next_checkpoint_s = time.monotonic() + _CHECKPOINT_EVERY_S

    def _now(self) -> float:
        return 0.0 if self._zero_s is None else time.monotonic() - self._zero_s

    def _is_heard(self, name: str, control: Control) -> bool:
        """Whether a node takes part, or wants to: what others say belongs to a generation without them."""
        return name in self.members or isinstance(control, Hello | Prepared | ClockRequest | Failed)

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
            case Hello(fingerprint) if self._elastic is not None and self._elastic.phase != "starting":
                self._join(name, fingerprint)
            case Hello(fingerprint):
                node.fingerprint = fingerprint
                self._compare()
            case ClockRequest():
                self._tell(ClockAnswer(time.monotonic()), [name])
            case Prepared(generation, checksums) if self._elastic is not None:
                if name not in self.members | self._elastic.workers:  # a worker has said Hello before
                    self._renew_line(name)
                self._check_replicas(partial(self._elastic.take_prepared, name, generation, checksums))
            case Prepared():
                node.is_prepared = True
                self._maybe_start()
            case Checksums(version, values):
                self._check_replicas(partial(self.journal.replicas.take, name, version, values))
            case Ended(checksums):
                node.has_ended = True
                self._check_replicas(partial(self.journal.replicas.take_last, name, checksums))
                self._end_generation(name, control)
            case Finished():
                node.has_finished = True
            case Lost(generation, message) if self._elastic is not None:
                log.info("%s: %s", name, message)
                self._elastic.complain(name, generation)
            case Standing() if self._elastic is not None:
                self._elastic.take_standing(name, control)
            case StateOutline() | StateTensor() if self._elastic is not None:
                self._collector.take(name, control, body)
            case Failed():
                self._take_failure(name, control)
            case _:
                log.debug("%s from %s is not for the hub", control, name)

    def _take_failure(self, name: str, failed: Failed) -> None:
        if self.has_started and name not in self.members:
            log.warning("%s, which the others do without, has failed: %s", name, failed.message)
        else:
            self.complaints.add(failed.error(name))

    def _join(self, name: str, fingerprint: dict[str, str]) -> None:
        """A worker has been started, or has come back: it joins at the next border."""
        assert self._elastic is not None
        if name in self.members:  # the process that had this name is gone, and nobody has noticed
            gone = MachineDied(f"{name} is gone: it has been started again")
            gone.blame = name
            self.lose(gone)
        self.restarts.cancel(name)  # a process of this name is there
        self.on_join(self._roster.by_name[name].index)
        self._renew_line(name)
        known = self.journal.nodes[self._roster.workers.members[0].name].fingerprint or {}
        found = differences([{key: known[key] for key in fingerprint if key in known}, fingerprint])
        if found:
            self._tell(Refuse(do_not_fit(found)), [name])
        elif not self._elastic.welcome(name):
            self._tell(Refuse(f"{name} comes too late: as many workers as may take part do already"), [name])

    def _maybe_start(self) -> None:
        """In a user's loop: begin, if all are prepared."""
        if all(each.is_prepared for each in self.journal.nodes.values()):
            self._zero_s = time.monotonic() + _HEAD_START_S
            self._tell(Start(self._zero_s))

    def _renew_line(self, name: str) -> None:
        """Forget the line to the process that had this name before; that it ends now means nothing."""
        self.mailbox.drop(name)
        self._silence.forget(name)

    def _end_generation(self, name: str, ended: Ended) -> None:
        """A worker has ended: with the last one, the generation has, and perhaps the run."""
        if self._elastic is None:
            if all(self.journal.nodes[worker.name].has_ended for worker in self._roster.workers):
                # Not before: some worker may still need its servers.
                self._tell(Release(), [node.name for node in (*self._roster.servers, *self._roster.communicators)])
        elif self._elastic.worker_ended(name, is_through=ended.is_through):
            is_over = self._told_to_stop or self._config.is_spent(ended.samples, self._now())
            if is_over or self._elastic.is_through:
                self._elastic.release()
            else:
                self._elastic.next()

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

    def _tell(self, control: Control, names: Iterable[str] | None = None) -> None:
        """Tell these nodes, or all of them."""
        log.info("%s to %s", type(control).__name__, "all" if names is None else names)
        for name in sorted(self.members) if names is None else names:
            self.mailbox.send(name, Packet(control=control))

    def stop(self, *, with_checkpoint: bool = False) -> None:
        """Ask all nodes to end, as if the budget were spent. With a checkpoint first, it is called until they do."""
        if not self._told_to_stop and self.has_started and not (with_checkpoint and self._last_checkpoint_comes()):
            self._told_to_stop = True
            if self._elastic is None:
                self._tell(Stop())

    def _look_for_stop(self) -> None:
        """Say that the run ends, once in each generation that begins: between two of them nobody listens for it."""
        elastic = self._elastic
        if elastic is not None and self._told_to_stop and elastic.phase == "running" and self._stopped < elastic.number:
            self._stopped = elastic.number
            self._tell(Stop())

    def _last_checkpoint_comes(self) -> bool:
        """Ask for a last checkpoint, once; returns whether it is worth waiting for."""
        config, elastic = self._config.elasticity, self._elastic
        if config is None or elastic is None or config.on_checkpoint is None:
            return False
        now = time.monotonic()
        if self._last_checkpoint_until_s is None and elastic.phase == "running":
            self._last_checkpoint_until_s = now + _LAST_CHECKPOINT_S
            elastic.wants_state = True
            elastic.ask_for_border()
        return self._last_checkpoint_until_s is None or now < self._last_checkpoint_until_s

    def finish(self, error: OwnpaceError | None) -> None:
        """Evaluate what is left, and write the last record."""
        if self._has_finished:  # once, even if what came after it failed
            return
        self._has_finished = True
        # Scores first: an evaluation that comes after the last record would be lost.
        self._take_scores(final=True)
        self.journal.end(self._ledger, self._now(), error, is_done=self.is_done)

    def say_goodbye(self) -> None:
        """Tell all nodes how the run ended, and let them end."""
        self._tell(Goodbye(self.journal.summary_lines))

    def give_up(self, error: OwnpaceError) -> None:
        """Tell every node that can be reached that the run has failed."""
        if self._refused:
            return  # they know why
        self._tell(GiveUp(error.code, str(error)), [name for name in self.members if self.mailbox.knows(name)])


def _ignore(index: int) -> None:
    pass
