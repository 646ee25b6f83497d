"""A rank of a user's script over the generations of its run: it goes on when others die.

The script knows nothing of it. Whatever it calls that may wait for others is an attempt: where the generation ends
meanwhile, this rank abandons what the algorithm was doing, takes part in the next generation, and the script goes on.
How ranks get there is drawn in `talk.regrouping`; a complete run does the same in `lives.worker_life`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from torch import Tensor

from ownpace.core.learning.claims import Places, number_of
from ownpace.engines.process.lives.exchange import NodeCounts, await_state, give_state
from ownpace.engines.process.lives.life import (
    LOSSES,
    await_plan,
    await_regrouping,
    await_word,
    forget_lines,
    next_node,
    say_farewell,
    until_started,
)
from ownpace.engines.process.lives.loop_parts import GivenLoop, LoopParts
from ownpace.engines.process.meet.environment import silence_s
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import TICK_S, NewGeneration
from ownpace.engines.process.node.model_point import held_by_servers
from ownpace.engines.process.node.user_parameters import unnoticed
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.control import Ended
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.regrouping import RegroupPlan

T = TypeVar("T")
log = logging.getLogger(__name__)


class LoopLife:
    """One rank, from the start of the first loop on."""

    def __init__(self, parts: LoopParts, node: ProcessWorker, counters: Counters | None) -> None:
        """`counters` are those of the first generation; None: this rank comes late, and joins."""
        self._parts = parts
        self.node = node
        """What this process is in this generation."""
        self._counters = counters
        self.deals = 0
        """How often what was left of a loop was dealt out anew."""
        self._counts = NodeCounts()
        self._is_new = counters is None
        self._is_running = not self._is_new
        self._stage = 0
        self._num_workers = len(node.workers)
        self._prepare(node)

    @property
    def counters(self) -> Counters:
        """Which samples of each loop have been taken in this generation, and by whom."""
        assert self._counters is not None
        return self._counters

    def join(self) -> None:
        """Join the others, who train already: with the next generation, which begins as soon as this rank is ready."""
        self.attempt(lambda: await_regrouping(self.node))

    @property
    def stamp(self) -> str:
        """A name for the running loop in this generation."""
        return f"{self.node.context.generation}/{self._parts.data.generation}"

    # ---- what the script does ----

    def attempt(self, act: Callable[[], None]) -> bool:
        """Do something that may wait for others; returns False if a new generation has begun instead."""
        node = self.node
        try:
            # Only in here: nowhere else in the script may a generation end.
            node.restarts = True
            try:
                self._look_ahead()
                act()
                return True
            except LOSSES as error:
                self._await_word(error)
        except NewGeneration:
            self._go_on()
        finally:
            self.node.restarts = False
        return False

    def insist(self, act: Callable[[], T]) -> T:
        """Do something that may wait for others, in whatever generation it can be done."""
        done: list[T] = []
        while not self.attempt(lambda: done.append(act())):
            pass
        return done[0]

    def settle(self) -> None:
        """The script waits for other ranks, between loops: a new generation may need this one, too."""
        self.attempt(lambda: self.node.inbox.look(0.0))

    def end(self) -> list[str]:
        """End with all others; returns the records that sum up the run, as lines."""
        return self.insist(self._say_farewell)

    def _say_farewell(self) -> list[str]:
        node = self.node
        node.learner.show(final=True)
        # The last report before the word that this node has ended: with the last node's, the hub sums up.
        node.context.reporter.report()
        node.context.reporter.say(Ended(node.learner.last_checksums(), node.progress.samples, is_through=True))
        while not node.inbox.released:
            node.inbox.look(TICK_S)
        return say_farewell(node)

    def close(self) -> None:
        """Leave nothing open."""
        self.node.sums.close()
        if self._counters is not None:
            self._counters.close()

    # ---- from one generation to the next ----

    def _look_ahead(self) -> None:
        """Raise if a new generation was announced while nobody listened."""
        inbox = self.node.inbox
        if inbox.next_generation > inbox.generation or inbox.declared_dead:
            raise NewGeneration

    def _await_word(self, error: Exception) -> None:
        try:
            await_word(self.node, error)
        except Exception:
            self._parts.loop.has_failed = True
            raise

    def _go_on(self) -> None:
        """Take part in the next generation, whichever that is by the time that it starts, and go on with the loop."""
        while True:
            try:
                try:
                    # The script's graphs stay: a pass through one may still come, in vain, where there are more models.
                    with unnoticed(self._parts.user.parameters):
                        self._regroup()
                    data = self._parts.data
                    if data.dealt is not None:
                        self._parts.loop.begin(data.generation, number_of(data.dealt))
                    return
                except LOSSES as error:
                    self._await_word(error)
            except NewGeneration:
                continue

    def _regroup(self) -> None:
        before, parts = self.node, self._parts
        if before.inbox.declared_dead:
            self._come_back(before)
        # Abandoned, not closed: whoever is gone would be waited for.
        before.sums.close(abandon=True)
        parts.loop.abandon()
        if self._is_running:
            self._counts, self._stage = NodeCounts.of(before), parts.data.stage
            self._is_running = False
        counts, checksums = self._counts, self._checksums()
        plan = await_plan(before, counts, is_new=self._is_new, checksums=checksums, stage=self._stage)
        self.node = node = self._next(before, plan)
        given = self._share(plan)
        counters = parts.open_counters(node, self._look)
        with until_started(node, partial(self._start, given, counters), counters.close):
            for parameters in held_by_servers(node):
                node.place(parameters)
            parts.loop.leave()  # what servers hold may have changed since: it was not the script
            parts.connection.start_together(node, is_new=self._is_new, checksums=self._checksums())

    def _come_back(self, before: ProcessWorker) -> None:
        """The others have gone on without this rank, which did not answer: join them anew, with what they have.

        Raises:
            NewGeneration: They take it in.
        """
        log.warning("this rank did not answer for %g s, and the others went on without it; it joins anew", silence_s())
        before.inbox.declared_dead = before.restarts = False
        self._is_new, self._is_running, self._stage = True, False, 0
        forget_lines(before)
        self._parts.rejoin(self._parts.connection, before)
        await_regrouping(before)

    def _next(self, before: ProcessWorker, plan: RegroupPlan) -> ProcessWorker:
        """What this process is in the next generation."""
        session, connection = self._parts.session, self._parts.connection
        for name in before.context.roster.by_name.keys() - set(plan.workers):
            if name in session.terms.workers:
                connection.mailbox.drop(name)  # closing would wait for it

        def make(context: NodeContext) -> ProcessWorker:
            return ProcessWorker(context, self._parts.user, before.batch_size, before.micro_batch, before)

        node = next_node(before, plan, session, connection, make, self._look, evaluates=False)
        self._prepare(node)
        self._parts.loop.go_on_as(node)
        return node

    def _prepare(self, node: ProcessWorker) -> None:
        node.learner.on_progress = lambda local: self._parts.on_progress(node, local)
        node.learner.settings_watch.is_led = lambda: self._parts.script.leads

    def _start(self, given: GivenLoop, counters: Counters) -> None:
        """The generation has started, for all: from now on its claims count."""
        counters.forget_path()  # all workers have opened the file: they have all said that they are prepared
        if self._counters is not None:
            self._counters.forget()
            self._counters.close()
        self._counters, self._num_workers, self._is_running = counters, len(self.node.workers), True
        data, samples, is_new = self._parts.data, self.node.progress.samples, self._is_new
        self._is_new = False
        if data.dealt is None:
            in_next = data.catch_up(given.stage, given.begun, given.left, is_new=is_new)
            self._parts.script.take_shared(given.script, is_new=is_new, in_next=in_next)
        elif given.begun > data.begun:  # this rank was away, and the others are in another loop
            self.deals += 1
            data.end_loop(complete=True)
            in_next = data.catch_up(given.stage, given.begun, given.left, is_new=True)
            self._parts.script.take_shared(given.script, is_new=True, in_next=in_next)
        else:
            self.deals += 1
            if given.in_loop:
                data.deal(given.left, samples)
            else:  # over for one, and so for all
                data.end_loop(complete=given.complete)
        self.node.learner.begin()
        self._parts.on_progress(self.node, 0)

    def _look(self) -> None:
        self.node.inbox.look(0.0)

    def _checksums(self) -> list[int]:
        return [] if len(self.node.servers) else self.node.learner.checksums()

    # ---- what is given and taken ----

    def _share(self, plan: RegroupPlan) -> GivenLoop:
        """Give or take what the plan says."""
        node, name, parts = self.node, self.node.address.name, self._parts
        if plan.giver == name:
            data = parts.data
            given = GivenLoop(self._stage, data.begun, self._left_over(plan), data.is_complete, parts.script.shared())
            for other in plan.workers:
                if other != name:
                    whole = parts.whole(node, self._counts) if other in plan.receivers else {}
                    buffers = [] if given.in_loop and not whole else list(parts.model.buffers())
                    give_state(node, other, given.state(buffers, whole), plan.generation)
        else:
            state = await_state(node, plan.generation)
            given = GivenLoop.of(state)
            if name in plan.receivers:
                self._counts = parts.take_whole(node, state)
            if self._is_new or (given.begun == parts.data.begun and given.stage > self._stage):
                buffers = cast("list[Tensor]", state["buffers"])
                for buffer, theirs in zip(parts.model.buffers(), buffers, strict=False):
                    buffer.copy_(theirs)  # what they have agreed on at the end of the loop
        counts = self._counts = self._counts.at(plan, has_servers=len(node.servers) > 0)
        node.go_on_from(counts.samples, counts.version, counts.ahead)
        return given

    def _left_over(self, plan: RegroupPlan) -> list[Places]:
        data = self._parts.data
        if data.dealt is None:
            return []
        claims = self.counters.claims(data.generation, self._num_workers)
        return data.left(claims, plan.used or None, plan.samples)
