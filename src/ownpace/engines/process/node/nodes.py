"""The nodes of a run on real processes: they answer what `core.contract.roles` says an algorithm may ask for.

One process is one node, and runs one coroutine. Awaiting blocks: nothing else has to happen here in between, so the
coroutine never suspends (except in a user's own loop, which computes the gradients: `node.loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Body, Gradient, Group, Message, Notes, Parameters
from ownpace.core.learning.layer_work import layer_buckets
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import Inbox
from ownpace.engines.process.node.learner import LearnerState
from ownpace.engines.process.node.optimizer_parts import StateParts, packets
from ownpace.engines.process.node.parameters import FlatParameters
from ownpace.engines.process.node.sums import NodeSums
from ownpace.engines.process.talk.control import Control, Pull, Pulled, PullState, StatePart
from ownpace.engines.process.talk.wire import Packet, blamed
from ownpace.engines.progress import Progress

B = TypeVar("B", Gradient, Tensor)


class ProcessNode:
    """Messages, collectives, and knowing when to stop. A communicator is just that."""

    def __init__(self, context: NodeContext, before: ProcessNode | None = None) -> None:
        """`before`: what this process was in the generation before, if there was one."""
        address, roster = context.address, context.roster
        self.context = context
        self.restarts = False
        self.address = address
        self.workers, self.servers, self.communicators = roster.workers, roster.servers, roster.communicators
        self.subgroup = roster.subgroup(address)
        is_server = address.role == "server"
        num_shards = 1 if is_server else len(roster.shards)
        self.progress = Progress(context.terms.budget_after(0), num_shards, counts_alone=is_server)
        self.inbox: Inbox = Inbox(context, self.progress, self, None if before is None else before.inbox)
        self.sums = NodeSums(context, self.progress, self.inbox, self.settings, self.hear_settings)

    @property
    def training(self) -> bool:
        return self.progress.training

    def send(self, to: Address, body: Body | Pending[Gradient] = None, **notes: float) -> None:
        self.finish_asked()
        assert isinstance(body, Gradient | Parameters | Tensor | None), "only a worker has gradients to be computed"
        if not isinstance(body, Parameters) or not body.by_layer:
            self.post(to, body, notes)
            return
        buckets = layer_buckets(self.context.layout, body.shard)
        for part, bucket in enumerate(buckets):
            start, stop = bucket.start - body.shard.start, bucket.stop - body.shard.start
            self.post(to, Parameters(body.values[start:stop], body.version, body.shard), notes, part, len(buckets))

    def post(self, to: Address, body: Body, notes: Notes, part: int = 0, num_parts: int = 1) -> None:
        """Send a message, or one bucket of layers of it."""
        packet = Packet(
            body,
            notes,
            self.progress.samples,
            self.inbox.wants_stop(),
            self.context.clock.now(),
            tuple(self.settings()),
            self.inbox.stamp,
            part,
            num_parts,
        )
        if self.inbox.link is not None:
            self.inbox.link.leave(packet)
        self.context.mailbox.send(to.name, packet)

    def receive(self, sender: Address | None = None) -> Pending[Message]:
        self.finish_asked()
        return self.inbox.receive(sender)

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Pending[B]:
        self.finish_asked()
        assert isinstance(body, Gradient | Tensor), "only a worker has gradients that are still to be computed"
        return cast("Pending[B]", self.sums.all_reduce(body, group or self.workers))

    def reduce(self, body: B | None, to: Address, group: Group) -> Pending[B | None]:
        self.finish_asked()
        return cast("Pending[B | None]", self.sums.reduce(body, group.members.index(to), group))

    def broadcast(self, body: B | None, root: Address, group: Group) -> Pending[B]:
        self.finish_asked()
        return cast("Pending[B]", self.sums.broadcast(body, group.members.index(root), group))

    def finish_asked(self) -> None:
        """Compute what was asked for and not awaited yet, because what is asked for next may depend on it."""

    def settings(self) -> Sequence[float]:
        """The optimizer settings that other nodes must know."""
        return ()

    def hear_settings(self, agreed: Sequence[float], mine: Sequence[float]) -> None:
        """Take in the optimizer settings that the members of a sum agreed on."""

    def hear_settings_of_message(self, settings: Sequence[float]) -> None:
        """Take in the optimizer settings of a message's sender."""

    def hear_control(self, sender: str, control: Control, body: Body) -> bool:
        return False

    def hear_rounding(self, *, unlike: bool) -> None:
        """Take in whether the workers' processors round unlike."""

    def go_on_from(self, samples: int, version: int, ahead: float) -> None:
        """Count on from here."""
        self.progress.begin_at(samples, (version,) * len(self.progress.versions), ahead)

    def begin(self, loop: int) -> None:
        """Begin a loop of a user's script: nothing before it is heard any more, not even that it was to stop."""
        self.progress.stop = False
        self.inbox.begin(loop)


class ProcessServer(ProcessNode):
    """A parameter server."""

    def __init__(self, context: NodeContext, held: FlatParameters, before: ProcessNode | None = None) -> None:
        super().__init__(context, before)
        self.learner = LearnerState(context, self.progress, held, self.inbox, _no_buffers)
        self.held = held
        self._parts = StateParts(self._layers)
        self.waits_for_state = False
        """Whether it is to get its parameters first, before others may pull them."""
        self._pulling: list[str] = []

    @property
    def parameters(self) -> Parameters:
        return self.learner.parameters

    @property
    def lr(self) -> float:
        return self.learner.lr

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        self.learner.step(gradient, lr_scale, advance, memory)

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        return self.learner.peek(gradient, lr_scale)

    def hear_settings_of_message(self, settings: Sequence[float]) -> None:
        self.learner.held.set_settings(settings)

    def hear_control(self, sender: str, control: Control, body: Body) -> bool:
        match control:
            case Pull() if self.waits_for_state:
                self._pulling.append(sender)
            case Pull():
                self._answer_pull(sender)
            case PullState():
                for packet in packets(dict(zip(self._layers, self.held.layer_states(), strict=True))):
                    self.context.mailbox.send(sender, packet)
            case StatePart():
                try:
                    states = self._parts.take(control, body)
                except WireError as error:
                    raise blamed(sender, error) from None
                if states is not None:
                    self.held.take_layer_states([states.get(layer, {}) for layer in self._layers])
            case _:
                return False
        return True

    def _answer_pull(self, sender: str) -> None:
        answer = Pulled(self.address.shard.index, self.progress.version, self.progress.samples)
        self.context.mailbox.send(sender, Packet(self.learner.held.snapshot(), control=answer))

    def has_state(self) -> None:
        """It has its parameters now: those who have asked for them get them."""
        self.waits_for_state = False
        pulling, self._pulling = self._pulling, []
        for sender in pulling:
            self._answer_pull(sender)

    def begin(self, loop: int) -> None:
        self.learner.begin()  # before what has come for the loop is taken in
        super().begin(loop)

    @property
    def _layers(self) -> list[int]:
        """Which layers of the model are here."""
        shard, layers = self.address.shard, self.context.layout.layers
        return [n for n, layer in enumerate(layers) if shard.start <= layer.start < shard.stop]


def _no_buffers() -> None:
    return None
