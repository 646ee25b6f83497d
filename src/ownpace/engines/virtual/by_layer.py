"""Layers on their own way, in virtual time: gradients that leave while they are computed, parameters that are used
while they arrive.

A message that goes layer by layer happens when its first bucket of layers arrives. By then it is known when the others
will, since links are booked, so no event is needed for each. Once every message has begun that a gradient waits for,
all its times follow: the forward pass of a bucket begins when the one below it is done and its parameters have come.
A gradient's own buckets are booked one by one, when the backward pass has them: others use the same links meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from ownpace.core.contract.values import Gradient, Message, Notes, Parameters
from ownpace.core.learning.layer_work import FORWARD_SHARE
from ownpace.engines.processor import Processor
from ownpace.engines.virtual.awaitables import (
    Arrival,
    Backward,
    Computing,
    Endpoint,
    VirtualGradient,
    VirtualMessage,
    VirtualReceive,
    leave,
    take_receive,
    waited,
)
from ownpace.engines.virtual.clock import Call, Due
from ownpace.engines.virtual.unjoined import Unjoined


class LayersLeaving(Endpoint, Protocol):
    """What layers on their way know of the node that they leave."""

    def book(self, receiver: Endpoint, nbytes: int) -> float:
        """Take up the links of both for a transfer; returns when it arrives."""

    def has_pushed(self) -> None:
        """All of a gradient that was handed over is on its way."""


class LayersArriving(Computing, Protocol):
    """What parameters on their way know of the worker that waits for them."""

    processor: Processor
    arriving: Arriving | None

    def place(self, parameters: Parameters) -> None:
        """Overwrite the parameters of a shard."""

    def contents(self, indices: Tensor) -> tuple[Tensor | Unjoined, float]:
        """The sum of these samples' gradients at the worker's parameters, and of their losses."""


class LayeredMessage(VirtualMessage):
    """Parameters under way, to be used as they arrive."""

    __slots__ = ("arrivals",)

    def __init__(self, sender: LayersLeaving, receiver: Endpoint, body: Parameters, stop: bool, notes: Notes) -> None:
        super().__init__(receiver, sender.address, body, sender.progress.samples, stop, notes)
        itemsize = body.values.element_size()
        buckets = sender.simulation.layer_times.buckets(body.shard)
        self.arrivals = [sender.book(receiver, (bucket.stop - bucket.start) * itemsize) for bucket in buckets]
        """When each bucket is there, the lowest layers first."""
        sender.simulation.clock.at(self.arrivals[0], self)

    def happen(self) -> None:
        received = take_receive(self.receiver, self.sender)
        if received is None:
            leave(self.receiver, self)
        else:
            self.meet(received)

    def meet(self, received: VirtualReceive) -> None:
        """It has begun to arrive, and somebody asks for it."""
        received.begun = self
        clock = self.receiver.simulation.clock
        if received.on_begun is not None or clock.time >= self.arrivals[-1]:
            received.begin()
        else:  # awaited like any other message: for all of it
            clock.at(self.arrivals[-1], Call(received.begin))


class Arriving:
    """Parameters that a worker was given before they had come, and the gradient that waits for them."""

    __slots__ = ("_before", "_came", "_gradient", "_missing", "_worker")

    def __init__(self, worker: LayersArriving, before: Arriving | None) -> None:
        self._worker = worker
        self._before = before
        self._missing = 0
        self._came: list[Message] = []
        self._gradient: ArrivingGradient | None = None

    def expect(self, received: VirtualReceive) -> None:
        """Put a message in its place when it comes."""
        self._missing += 1
        received.on_begun = self._has_come
        if received.done:
            self._has_come(received.value)
        elif received.begun is not None:
            received.begin()

    @property
    def is_taken(self) -> bool:
        """Whether a gradient waits for them: what is handed over from now on is for the next."""
        return self._gradient is not None

    def _has_come(self, message: Message) -> None:
        self._worker.place(message.parameters)
        self._came.append(message)
        self._missing -= 1
        self._maybe_begin()

    def wait(self, gradient: ArrivingGradient) -> None:
        """Let a gradient begin when all has come."""
        if self._gradient is not None:
            raise RuntimeError("gradient: one waits for parameters already; await it first")
        self._gradient = gradient
        self._maybe_begin()

    def _maybe_begin(self) -> None:
        if self._gradient is not None and not self._missing:
            if self._worker.arriving is self:  # else others are expected already, for the next gradient
                self._worker.arriving = None
            self._before = None
            self._gradient.begin(self._came)

    def check(self) -> None:
        """Raise if the worker's parameters cannot be told yet."""
        if self._missing:
            raise RuntimeError("parameters that were handed to place have not come yet; await those messages first")
        if self._before is not None:
            self._before.check()


class ArrivingGradient(VirtualGradient):
    """A gradient at parameters that are still arriving: each layer's forward pass waits for its own."""

    __slots__ = (
        "_backward_s",
        "_came",
        "_first_s",
        "_indices",
        "_plus",
        "_pushes",
        "_ready_s",
        "_told",
        "_waits",
        "_work_s",
    )
    worker: LayersArriving

    def __init__(
        self, worker: LayersArriving, samples: int, ready_s: float, indices: Tensor, plus: Gradient | None
    ) -> None:
        super().__init__(worker.simulation.learning.initial, samples, worker.progress.versions)
        self.worker, self.computed = worker, samples
        self.nbytes = worker.simulation.parameter_bytes
        self.start, self.end = ready_s, math.inf
        self.then, self.done, self.driver, self.parts = None, False, None, None
        self._ready_s, self._indices, self._plus = ready_s, indices, plus
        # Drawn now: jitter goes by the order of asking.
        self._work_s = worker.processor.work_s(samples)
        self._came: Sequence[Message] = ()
        self._waits: list[tuple[float, float]] = []
        self._first_s = self._backward_s = ready_s
        self._pushes: list[PushedLayers] = []
        self._told: list[Callable[[Backward], None]] = []

    def when_known(self, tell: Callable[[Backward], None]) -> None:
        if self.end < math.inf:
            tell(Backward(self.worker.processor, self._backward_s, self.end))
        else:
            self._told.append(tell)

    def take_along(self, push: PushedLayers) -> None:
        """Let a message take it along as it is computed."""
        if self.end < math.inf:
            push.begin(self._backward_s, self.end)
        else:
            self._pushes.append(push)

    def begin(self, came: Sequence[Message]) -> None:
        """All messages have begun to arrive: it is known now when the rest will, and where the gradient is taken."""
        self._came = came
        self.begin_with(self._arrivals())

    def begin_with(self, arrivals: Iterable[Arrival]) -> None:
        """It is known when each layer arrives, the lowest first."""
        worker = self.worker
        forward_s, self._backward_s = self._go_forward(arrivals)
        self.end = worker.processor.spend(self._backward_s, self._work_s * (1 - FORWARD_SHARE))[1]
        self.seconds = forward_s + self.end - self._backward_s
        # As if it had been computed without a pause: a worker's time is counted from here.
        self.start = self.end - self.seconds
        self._fill()
        worker.simulation.clock.at(self.end, self)
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            push.begin(self._backward_s, self.end)
        told, self._told = self._told, []
        for tell in told:
            tell(Backward(worker.processor, self._backward_s, self.end))

    def _fill(self) -> None:
        """Compute what it consists of."""
        worker = self.worker
        contents, self.loss = worker.contents(self._indices)
        self.hold(contents)
        self.versions = worker.progress.versions
        if worker.simulation.accounted:
            self.sources = ((worker.address.index, self.computed),)
        if self._plus is not None:
            self.add(self._plus)
            self._plus = None

    def _arrivals(self) -> Iterator[Arrival]:
        """When the layers of all shards arrive."""
        simulation = self.worker.simulation
        arrivals = {m.parameters.shard.index: m.arrivals for m in self._came if isinstance(m, LayeredMessage)}
        for shard in simulation.roster.shards:
            buckets = simulation.layer_times.buckets(shard)
            # What came whole, or was there before, waits for nothing.
            yield from zip(buckets, arrivals.get(shard.index, [0.0] * len(buckets)), strict=True)

    def _go_forward(self, arrivals: Iterable[Arrival]) -> tuple[float, float]:
        """How long the forward pass computes, and when it ends."""
        times, processor = self.worker.simulation.layer_times, self.worker.processor
        spent_s, time, is_first = 0.0, self._ready_s, True
        for bucket, arrival in arrivals:
            start, end = processor.spend(max(time, arrival), self._work_s * times.forward(bucket))
            if is_first:
                self._first_s, is_first = start, False
            elif start > time:
                self._waits.append((time, start))
            spent_s += end - start
            time = end
        return spent_s, time

    @property
    def begun_s(self) -> float:
        return self._first_s

    def happen(self) -> None:
        # It has waited for these messages, so what their senders knew is known here from now on.
        progress = self.worker.progress
        for message in self._came:
            progress.hear(message.samples, message.stop)
        for start, end in self._waits if self.worker.simulation.detail else ():
            waited(self.worker, "layers", start, end)
        super().happen()


class PushedLayers(Due):
    """A gradient on its way to one node: each bucket of layers leaves when the backward pass has it."""

    __slots__ = ("_gradient", "_left", "_notes", "_receiver", "_sender", "_times", "done", "driver")

    def __init__(self, sender: LayersLeaving, receiver: Endpoint, gradient: VirtualGradient, notes: Notes) -> None:
        self.done, self.driver = False, None
        self._sender, self._receiver, self._gradient, self._notes = sender, receiver, gradient, notes
        # The highest layers first: the backward pass ends with the lowest.
        self._left = list(reversed(sender.simulation.layer_times.buckets(receiver.address.shard)))
        self._times: list[float] = []

    def begin(self, start_s: float, end_s: float) -> None:
        """It is known when the backward pass begins and ends."""
        processor, times = self._gradient.worker.processor, self._sender.simulation.layer_times
        self._times = [processor.partway(start_s, end_s, times.backward_done(bucket)) for bucket in self._left]
        self._sender.simulation.clock.at(self._times[0], self)

    def happen(self) -> None:
        sender, clock = self._sender, self._sender.simulation.clock
        bucket = self._left.pop(0)
        del self._times[0]
        arrival = sender.book(self._receiver, (bucket.stop - bucket.start) * self._gradient.total.element_size())
        if self._left:
            clock.at(self._times[0], self)
            return
        over = clock.time >= sender.simulation.deadline_s
        body = self._gradient.part(self._receiver.address.shard)
        message = VirtualMessage(self._receiver, sender.address, body, sender.progress.samples, over, self._notes)
        clock.at(arrival, message)
        sender.has_pushed()


__all__ = ["Arriving", "ArrivingGradient", "LayeredMessage", "LayersArriving", "LayersLeaving", "PushedLayers"]
