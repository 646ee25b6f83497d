"""A server or a communicator of a complete run, over all its generations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ownpace.core.learning.optimizer import Build, FlatOptimizer, State
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.exchange import NodeCounts, await_state, counted, give_state, take_counted
from ownpace.engines.process.lives.life import (
    await_plan,
    await_regrouping,
    drive,
    forget_lines,
    next_node,
    say_farewell,
    until_started,
)
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import TICK_S, NewLoop, Released
from ownpace.engines.process.node.nodes import ProcessNode, ProcessServer
from ownpace.engines.process.node.optimizer_copy import OptimizerCopy
from ownpace.engines.process.node.parameters import FlatParameters
from ownpace.engines.process.node.reporter import HUB

_SAVE_EVERY_S = 1.0


class HelperLife:
    """One server's or communicator's process."""

    def __init__(self, session: Session, connection: Connection, context: NodeContext, *, is_late: bool) -> None:
        self._session = session
        self._connection = connection
        self._held = held_by(context) if context.address.role == "server" else None
        self._is_new = True
        self._is_late = is_late
        self._is_running = self._is_spare = False
        self._counts = NodeCounts()
        self._stage = 0
        self._next_save_s = 0.0
        self.node = self._make(context)

    def _make(self, context: NodeContext, before: ProcessNode | None = None) -> ProcessNode:
        return ProcessNode(context, before) if self._held is None else ProcessServer(context, self._held, before)

    def begin(self) -> None:
        node = self.node
        if self._is_late:
            await_regrouping(node)
        if isinstance(node, ProcessServer):
            take_first_parameters(node)
        node.restarts = True
        self._connection.start_together(node)
        self._start()

    def _start(self) -> None:
        self._is_new, self._is_running = False, True
        if isinstance(self.node, ProcessServer):
            self.node.learner.begin()
            self._next_save_s = 0.0
            self._maybe_save(0)
            self.node.learner.on_progress = self._maybe_save

    def _maybe_save(self, local_samples: int) -> None:
        """Let the hub have what this server holds, about once a second: it is started again from that if it dies."""
        node, now = self.node, time.monotonic()
        if now < self._next_save_s or not isinstance(node, ProcessServer):
            return
        if node.context.mailbox.keeps_for(HUB):
            return  # the hub has not taken the last one: if it is stopped, they would fill the memory
        self._counts = NodeCounts.of(node)
        give_state(node, HUB, self.state(node), node.context.generation)
        # Less often where it takes long: the workers wait for it.
        self._next_save_s = now + max(_SAVE_EVERY_S, 50 * (time.monotonic() - now))

    def work(self) -> None:
        """In a user's script, each loop begins the coroutine anew."""
        self.node.inbox.heeds_loops = True
        while True:
            if self.node.inbox.newest_loop > self.node.inbox.loop:
                self.node.begin(self.node.inbox.newest_loop)
            try:
                self._drive()
            except NewLoop:
                continue
            except Released:
                return

    def _drive(self) -> None:
        algorithm, node = self._session.terms.algorithm, self.node
        if isinstance(node, ProcessServer):
            drive(algorithm.server(node))
        elif not self._is_spare:
            drive(algorithm.communicator(node))
        while True:  # the coroutine has returned: its part is over
            node.inbox.tick()
            node.inbox.look(TICK_S)

    def end(self) -> list[str]:
        if isinstance(self.node, ProcessServer):
            self.node.learner.show(final=True)
        return say_farewell(self.node)

    def close(self) -> None:
        """Leave nothing open."""
        self.node.sums.close()

    def regroup(self) -> None:
        before = self.node
        before.sums.close(abandon=True)
        if before.inbox.declared_dead:
            self._come_back()
        if self._is_running:
            self._counts, self._stage = NodeCounts.of(before), 2 * before.inbox.loop
            self._is_running = False
        plan = await_plan(before, self._counts, is_new=self._is_new, checksums=[], stage=self._stage)
        self._is_spare = before.address.name not in self._session.terms.roster(plan.workers).by_name
        if self._is_spare:
            return  # fewer communicators are needed now: this one waits
        self.node = node = next_node(
            before, plan, self._session, self._connection, partial(self._make, before=before), self._look
        )
        if isinstance(node, ProcessServer) and node.address.name in plan.receivers:
            node.waits_for_state = True
            self._take(node, await_state(node, plan.generation))
        counts = self._counts
        node.go_on_from(counts.samples, counts.version, counts.ahead)
        if isinstance(node, ProcessServer):
            node.has_state()
            if plan.wants_state:
                give_state(node, HUB, self.state(node), plan.generation)
        with until_started(node, self._start, lambda: None):
            self._connection.start_together(node, is_new=self._is_new)

    def _come_back(self) -> None:
        """The others wait for this node to be started again: join them as if it were."""
        node = self.node
        node.inbox.declared_dead = False
        self._is_new, self._is_running = True, False
        forget_lines(node)
        await_regrouping(node)

    def _look(self) -> None:
        self.node.inbox.look(0.0)

    def state(self, node: ProcessServer) -> PlainState:
        """What this server holds."""
        return {
            "generation": node.context.generation,
            "stage": 2 * node.inbox.loop,
            "values": node.held.snapshot(),
            "optimizer": node.held.all_states(),
            "num_layers": sum(self._is_mine(node)),
            **counted(node, self._counts),
        }

    def _is_mine(self, node: ProcessServer) -> list[bool]:
        shard = node.address.shard
        return [shard.start <= layer.start < shard.stop for layer in node.context.layout.layers]

    def _take(self, node: ProcessServer, state: PlainState) -> None:
        node.held.take_all(cast(Tensor, state["values"]), cast("Mapping[str, State]", state["optimizer"]))
        self._counts = take_counted(node, state)


def held_by(context: NodeContext) -> FlatParameters:
    """What a server holds, before it has got its first parameters."""
    terms, shard = context.terms, context.address.shard
    build: Build = terms.optimizer.build
    places: list[int] | None = None
    clip_norm: float | None = None
    if isinstance(terms.optimizer, OptimizerCopy):  # of a user's loop, who clips gradients himself
        build, places = terms.optimizer.for_shard(terms.layers, shard)
    else:
        clip_norm = terms.optimizer.clip_norm
    values = torch.zeros(shard.stop - shard.start, dtype=terms.dtype)
    return FlatParameters(values, FlatOptimizer(context.layout, shard, values, build, clip_norm=clip_norm), places)


def take_first_parameters(node: ProcessServer) -> None:
    """Begin with the parameters that rank 0 sends."""
    # The first message of all: workers push only after the start, which waits for this node.
    first = node.inbox.receive()
    while not first.done:
        node.inbox.look(TICK_S)
    assert first.message is not None
    node.held.values.copy_(first.message.parameters.values)
