"""The nodes of a run in virtual time: they answer what `core.contract.roles` says an algorithm may ask for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import (
    NO_NOTES,
    Address,
    Batch,
    Body,
    Gradient,
    Group,
    Message,
    Notes,
    Parameters,
    Shard,
)
from ownpace.core.learning.layer_work import FORWARD_SHARE
from ownpace.engines.ledger import diverged
from ownpace.engines.processor import Processor
from ownpace.engines.progress import Progress
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.awaitables import (
    CollectivePart,
    Endpoint,
    VirtualBatch,
    VirtualGradient,
    VirtualMessage,
    VirtualReceive,
)
from ownpace.engines.virtual.by_layer import Arriving, ArrivingGradient, LayeredMessage, PushedLayers
from ownpace.engines.virtual.collectives import Collectives
from ownpace.engines.virtual.learner import LEARNER_SLOTS, VirtualLearner
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.unjoined import Unjoined
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
        whole = Shard(0, 0, simulation.learning.layout.size)
        address = VirtualAddress("communicator", index, f"communicator-{index}", whole, site)
        bandwidth = simulation.job.fleet.network.bandwidth_bytes_per_s
        super().__init__(surroundings, address, bandwidth, Progress(simulation.budget))


class VirtualWorker(VirtualLearner, VirtualNode):
    """A worker: a node with a machine, data and parameters."""

    __slots__ = (
        *LEARNER_SLOTS,
        "batch_size",
        "buffers",
        "compute_s",
        "computed_samples",
        "kept",
        "load_s",
        "micro_batch",
        "processor",
        "rank",
    )

    def __init__(
        self, surroundings: tuple[Simulation, Collectives], rank: int, number: int, replica: Replica, num_shards: int
    ) -> None:
        simulation = surroundings[0]
        job = simulation.job
        machine = job.fleet.workers[number]
        progress = Progress(simulation.budget, num_shards)
        bandwidth = job.fleet.network.bandwidth_bytes_per_s
        address = VirtualAddress("worker", rank, machine.name, simulation.whole, machine.machine.site)
        super().__init__(surroundings, address, bandwidth, progress)
        self.begin_at(replica)
        self.batch_size = job.batch_size
        self.micro_batch = job.algorithm.micro_batch(job.batch_size, job.micro_batch, len(simulation.numbers))
        self.buffers = simulation.learning.new_buffers()
        self.computed_samples = 0
        self.kept: dict[str, Tensor] = {}
        self.compute_s = 0.0
        self.load_s = 0.0
        self.rank = rank
        self.processor = Processor(machine, number, job.seed)

    def load(self, samples: int | None = None) -> VirtualBatch:
        samples = self.micro_batch if samples is None else samples
        end = self._load(samples)
        loaded = VirtualBatch(Batch(self.simulation.draw(self.rank, samples), samples))
        self._clock.at(end, loaded)
        return loaded

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> VirtualGradient:
        simulation = self.simulation
        if batch is not None:
            samples, ready = batch.samples, self._clock.time
        else:
            if samples is None:
                samples = self.micro_batch
            # Most fleets load in no time: asking first saves a call for every gradient.
            ready = self._load(samples) if self.processor.io_s_per_sample else self._clock.time
        if at is None and (self.arriving is not None or self.layers_due):
            indices = simulation.draw(self.rank, samples) if batch is None else batch.indices
            return self._wait_for_layers(ArrivingGradient(self, samples, ready, indices, plus))
        start, end = self.processor.compute(ready, samples)
        versions = self.progress.versions if at is None else self.progress.versions_at(at)
        # A tensor without contents, where nothing but time is simulated: its size matters, for what it costs to send.
        computed = VirtualGradient(simulation.learning.initial, samples, versions, math.nan, end - start, NO_NOTES)
        computed.parts = None
        if simulation.real:
            # Drawn and computed when it is asked for, though it is done later: parameters may have moved on by then.
            indices = simulation.draw(self.rank, samples) if batch is None else batch.indices
            contents, computed.loss = self.contents(indices, self._values if at is None else at.values)
            computed.hold(contents)
        computed.computed = samples
        if simulation.accounted:
            computed.sources = ((self.rank, samples),)
        if plus is not None:
            computed.add(plus)
        computed.start = start
        computed.end = end
        computed.then = None
        computed.done = False
        computed.driver = None
        computed.worker = self
        self._clock.at(end, computed)
        return computed

    def _wait_for_layers(self, gradient: ArrivingGradient) -> ArrivingGradient:
        """Let a gradient begin when it is known when its parameters arrive."""
        if self.arriving is not None:
            self.arriving.wait(gradient)
        else:
            due, self.layers_due = self.layers_due, ()
            gradient.begin_with(due)
        return gradient

    async def step_by_layer(
        self, total: Pending[Gradient], *, lr_scale: float = 1.0, advance: float | None = None
    ) -> Gradient:
        gradient = await self.sum_by_layer(total)
        self.step(gradient, lr_scale=lr_scale, advance=advance)
        self.expect_layers(total)
        return self.simulation.said(gradient)

    def sum_by_layer(self, total: Pending[Gradient]) -> Pending[Gradient]:
        """The same sum, which is over as soon as its lowest layers have come."""
        if isinstance(total, CollectivePart):
            total.by_layer = self.simulation.steps_by_layer
        return total

    def expect_layers(self, total: Pending[Gradient]) -> None:
        """Layers of the update that was just made with this sum are still to come: the next gradient waits for them."""
        if isinstance(total, CollectivePart):
            self.layers_due = total.arrivals

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        super().local_step(gradient, lr_scale=lr_scale)
        self._take_time(gradient)

    def _made_update(self, gradient: Gradient, advance: float | None) -> None:
        super()._made_update(gradient, advance)
        if self.processor.s_per_update:
            self._take_time(gradient)

    def _take_time(self, gradient: Gradient) -> None:
        """Be busy with an optimizer step: what is computed or sent next begins after it."""
        if self.processor.s_per_update and gradient.samples:
            end = self.processor.update(self._clock.time)
            self.out_free_s = max(self.out_free_s, end)

    def contents(self, indices: Tensor, values: Tensor | None = None) -> tuple[Tensor | Unjoined, float]:
        """The sum of these samples' gradients, at these parameters or at my own, and of their losses."""
        simulation = self.simulation
        if not simulation.real:
            return simulation.learning.initial, math.nan
        parts, loss = simulation.learning.gradient(self._values if values is None else values, self.buffers, indices)
        if not math.isfinite(loss):
            raise diverged(f"the loss on {self.address.name}", loss, self.progress.samples)
        return Unjoined(simulation.learning.layout, parts), loss

    def place(self, parameters: Parameters | Pending[Message]) -> None:
        if isinstance(parameters, Parameters):
            super().place(parameters)
            return
        assert isinstance(parameters, VirtualReceive), "what was asked for here"
        if self.arriving is None or self.arriving.is_taken:
            self.arriving = Arriving(self, self.arriving)
        self.arriving.expect(parameters)

    def no_gradient(self) -> Gradient:
        # −0.0: added to it, a layer without a gradient stays one.
        nothing = torch.full_like(self.simulation.learning.initial, -0.0)
        return Gradient(nothing, 0, self.progress.versions, 0.0)

    def take_data_range(self, start: float, stop: float) -> None:
        if self.simulation.sampler is not None:
            self.simulation.sampler.assign(self.rank, start, stop)

    def tally(self, begun_s: float) -> events.Tally:
        """What this worker has done, with the time that its gradient under way has taken so far."""
        return events.Tally(self.computed_samples, self.compute_s + begun_s, self.load_s)

    def _load(self, samples: int) -> float:
        start, end = self.processor.load(self._clock.time, samples)
        self.load_s += end - start
        if self.simulation.detail and end > start:
            self.simulation.emit(events.Load(start, end, self.address.name, samples))
        return end


__all__ = ["VirtualCommunicator", "VirtualNode", "VirtualServer", "VirtualWorker"]
