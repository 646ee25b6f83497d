"""The nodes of a run in virtual time: they answer what `core.contract.roles` says an algorithm may ask for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import (
    Address,
    Body,
    Gradient,
    Group,
    Message,
    Notes,
    Parameters,
    Shard,
)
from ownpace.core.learning.layer_work import FORWARD_SHARE
from ownpace.engines.progress import Progress
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.awaitables import (
    CollectivePart,
    Endpoint,
    VirtualGradient,
    VirtualMessage,
    VirtualReceive,
)
from ownpace.engines.virtual.by_layer import ArrivingGradient, LayeredMessage, PushedLayers
from ownpace.engines.virtual.collectives import Collectives
from ownpace.engines.virtual.learner import LEARNER_SLOTS, VirtualLearner
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.fleet import ServerMachine

B = TypeVar("B", Gradient, Tensor)
_NOTE_BYTES = 8


class VirtualAddress(Address):
    """An address that knows its node."""

    __slots__ = ("node",)
    node: VirtualNode


class VirtualNode:
    """What workers, servers and communicators share: a link, messages, collectives, and knowing when to stop.

    Large fleets are slow where memory is touched in many places, so what every message needs is in the node's own
    slots.
    """

    __slots__ = (
        "_clock",
        "_collectives",
        "_deferred",
        "_pushing",
        "address",
        "bandwidth_bytes_per_s",
        "in_free_s",
        "mailbox",
        "out_free_s",
        "progress",
        "receiving",
        "simulation",
        "uplink",
        "waited_s",
    )

    def __init__(
        self,
        surroundings: tuple[Simulation, Collectives],
        address: VirtualAddress,
        bandwidth: float,
        progress: Progress,
    ) -> None:
        self.simulation, self._collectives = surroundings
        self._clock = self.simulation.clock
        self.address: Address = address
        address.node = self
        self.progress = progress
        self.bandwidth_bytes_per_s = bandwidth
        self.uplink = self.simulation.uplinks.get(address.site)
        self.in_free_s = 0.0
        self.out_free_s = 0.0
        self.waited_s = 0.0
        # Made for the first message that comes unasked: in most algorithms a worker never gets one.
        self.mailbox: deque[Message] | None = None
        self.receiving: VirtualReceive | None = None
        self._pushing = 0
        self._deferred: list[Callable[[], None]] | None = None

    @property
    def workers(self) -> Group:
        return self.simulation.roster.workers

    @property
    def servers(self) -> Group:
        return self.simulation.roster.servers

    @property
    def communicators(self) -> Group:
        return self.simulation.roster.communicators

    @property
    def subgroup(self) -> Group:
        return self.simulation.roster.subgroup(self.address)

    @property
    def training(self) -> bool:
        progress = self.progress
        return progress.samples < progress.budget and not progress.stop  # progress.training, without another call

    def send(self, to: Address, body: Body | Pending[Gradient] = None, **notes: float) -> None:
        receiver: VirtualNode = to.node  # type: ignore[attr-defined]  # all addresses are virtual ones here
        if isinstance(body, VirtualGradient) and (not body.done or len(body.versions) > 1):
            if not body.done:
                self._push(receiver, body, notes)
                return
            body = body.part(to.shard) if to.role == "server" else body
        if self._pushing:  # behind what was handed over before: messages between two nodes keep their order
            self._deferred = [*(self._deferred or ()), partial(self.send, to, body, **notes)]
            return
        over = self._clock.time >= self.simulation.deadline_s
        if isinstance(body, Parameters) and body.by_layer:
            LayeredMessage(self, receiver, body, over, notes)
            return
        given: Body = body  # type: ignore[assignment]  # what can be pending is a gradient of ours
        arrival = self.book(receiver, _NOTE_BYTES * len(notes) if given is None else given.nbytes)
        message = VirtualMessage(receiver, self.address, given, self.progress.samples, over, notes)
        self._clock.at_last(arrival, message)

    def book(self, receiver: Endpoint, nbytes: int) -> float:
        """Take up my way out and the receiver's way in, as transport.py says; returns when it arrives."""
        simulation, now = self.simulation, self._clock.time
        # The hottest code of a run, together with `send`.
        start = now if now > self.out_free_s else self.out_free_s
        out = self.out_free_s = start + nbytes / self.bandwidth_bytes_per_s
        # Booked from now on, even if the bytes come later: while it waits for my link, it does not hold up others.
        free = receiver.in_free_s
        take = nbytes / receiver.bandwidth_bytes_per_s
        into = receiver.in_free_s = (now if now > free else free) + take
        if into < start + take:
            into = start + take
        done = out if out > into else into
        if self.uplink is not receiver.uplink:
            done = transport.cross(self, receiver, nbytes, (now, start, done))
        arrival = done + simulation.latency_s
        if simulation.detail:
            who = [self.address.name, receiver.address.name]
            simulation.emit(events.Transfer(start, arrival, "send", who, nbytes))
        return arrival

    def _push(self, receiver: VirtualNode, gradient: VirtualGradient, notes: Notes) -> None:
        """Send a gradient as it is computed."""
        self._pushing += 1
        push = PushedLayers(self, receiver, gradient, notes)
        if isinstance(gradient, ArrivingGradient):
            gradient.take_along(push)
        else:
            start = gradient.worker.processor.partway(gradient.start, gradient.end, FORWARD_SHARE)
            push.begin(start, gradient.end)

    def has_pushed(self) -> None:
        self._pushing -= 1
        if not self._pushing:
            deferred, self._deferred = self._deferred, None
            for send in deferred or ():
                send()

    def receive(self, sender: Address | None = None) -> VirtualReceive:
        received = VirtualReceive(self, sender)
        # What has come already first, oldest first: messages between two nodes keep their order.
        if self.mailbox:
            for message in self.mailbox:
                if sender is None or message.sender is sender:
                    self.mailbox.remove(message)
                    if isinstance(message, LayeredMessage):
                        message.meet(received)
                    else:
                        received.resolve(message)
                    return received
        if self.receiving is None:
            self.receiving = received
        else:
            # A chain instead of a list: it nearly always has one link, and costs no object per node.
            last = self.receiving
            while last.following is not None:
                last = last.following
            last.following = received
        return received

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> CollectivePart:
        part = CollectivePart(self, "all-reduce", cast(Body, body))
        return self._collectives.start("all-reduce", part, self.address, group or self.simulation.roster.workers)

    def reduce(self, body: B | None, to: Address, group: Group) -> CollectivePart:
        return self._collectives.start("reduce", CollectivePart(self, "reduce", body), self.address, group, to)

    def broadcast(self, body: B | None, root: Address, group: Group) -> CollectivePart:
        part = CollectivePart(self, "broadcast", body)
        return self._collectives.start("broadcast", part, self.address, group, root)


class VirtualServer(VirtualLearner, VirtualNode):
    """A parameter server."""

    __slots__ = LEARNER_SLOTS

    def __init__(
        self, surroundings: tuple[Simulation, Collectives], shard: Shard, machine: ServerMachine, replica: Replica
    ) -> None:
        simulation = surroundings[0]
        fleet, progress = simulation.job.fleet, Progress(simulation.budget, counts_alone=True)
        address = VirtualAddress("server", shard.index, f"server-{shard.index}", shard, fleet.site_of(machine))
        bandwidth = machine.bandwidth_bytes_per_s or fleet.network.bandwidth_bytes_per_s
        super().__init__(surroundings, address, bandwidth, progress)
        self.begin_at(replica)


class VirtualCommunicator(VirtualNode):
    """A node that only moves data."""

    __slots__ = ()

    def __init__(self, surroundings: tuple[Simulation, Collectives], index: int, site: str) -> None:
        simulation = surroundings[0]
        address = VirtualAddress("communicator", index, f"communicator-{index}", simulation.whole, site)
        bandwidth = simulation.job.fleet.network.bandwidth_bytes_per_s
        super().__init__(surroundings, address, bandwidth, Progress(simulation.budget))


__all__ = ["VirtualAddress", "VirtualCommunicator", "VirtualNode", "VirtualServer"]
