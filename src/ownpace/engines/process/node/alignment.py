"""Where processors round unlike, replicas are made equal again, whenever they are compared and at every end.

All workers take over what the first one has, after the same updates. It sends without waiting, by messages, which keep
no order with sums: a worker may have made an update when the first one still waits for layers of it. What optimizers
remember is not made equal: it differs by rounding, too, and they forget it. How far apart replicas were is told to the
hub, which ends the run if rounding cannot be why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Body
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import Inbox
from ownpace.engines.process.node.parameters import HeldParameters
from ownpace.engines.process.node.rounding import allowed, distance
from ownpace.engines.process.talk.replica_control import Apart, FirstReplica
from ownpace.engines.process.talk.wire import Packet, blamed


class Alignment:
    """One worker's part in it; nothing, where processors round alike."""

    def __init__(self, context: NodeContext, inbox: Inbox, held: HeldParameters) -> None:
        self._context = context
        self._inbox = inbox
        self._held = held
        self._version: int | None = None
        """The latest at which all were made equal."""
        self.is_needed = False
        """Whether processors round unlike."""

    @property
    def _is_possible(self) -> bool:
        roster = self._context.roster
        has_replicas = self._context.terms.algorithm.replicas_identical and not len(roster.servers)
        return has_replicas and self._context.address.role == "worker" and len(roster.workers) > 1

    def begin(self, version: int) -> None:
        """A generation or a loop begins, with the same parameters on all workers."""
        self._version = version

    def align(self, version: int) -> None:
        """Let all workers have what the first has after this many updates; all of them call this."""
        if not (self.is_needed and self._is_possible) or version == self._version:
            return
        updates = version - (self._version or 0)
        self._version = version
        first, *others = self._context.roster.workers.members
        if self._context.address.name == first.name:
            values = self._held.snapshot().cpu()
            control = FirstReplica(self._context.generation, version)
            for other in others:
                self._context.mailbox.send(other.name, Packet(values, control=control))
        else:
            self._take_over(self._await(version, first.name), version, updates)

    def _await(self, version: int, first: str) -> Tensor:
        while True:
            control, body = self._inbox.wait_for(FirstReplica)
            # What is left of a generation that was broken off, or of an update that died with it, is passed over.
            if (control.generation, control.version) == (self._context.generation, version):
                return self._checked(body, first)

    def _checked(self, body: Body, first: str) -> Tensor:
        mine = self._held.values
        if not isinstance(body, Tensor) or body.shape != mine.shape or body.dtype != mine.dtype:
            raise blamed(first, WireError("parameters that are not those of this model"))
        # A copy: the memory that it came in may belong to the line.
        return torch.empty_like(mine).copy_(body)

    def _take_over(self, theirs: Tensor, version: int, updates: int) -> None:
        mine = self._held.values
        apart, layer = distance(mine, theirs, self._context.layout)
        # Even if no number is another: −0.0 is equal to 0.0, and has other bits.
        self._held.overwrite(theirs)
        if apart:
            most = allowed(updates, mine.dtype)
            self._context.reporter.say(Apart(version, updates, layer, apart, most))
