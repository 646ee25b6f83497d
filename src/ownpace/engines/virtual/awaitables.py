"""What can be awaited in virtual time: gradients, batches, messages, and one's part in a collective."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Batch, Body, Gradient, Message, Notes
from ownpace.core.learning.layer_work import FORWARD_SHARE, LayerBucket
from ownpace.engines.processor import Processor
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.clock import Answer, Due
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.transport import Link
from ownpace.engines.virtual.unjoined import JoinedLater


class Endpoint(Link, Protocol):
    """What awaitables know of a node."""

    address: Address
    simulation: Simulation
    progress: Progress
    mailbox: deque[Message] | None
    """Messages that came before they were asked for."""
    receiving: VirtualReceive | None
    """Messages that were asked for before they came: a chain, oldest first."""
    waited_s: float
    """For collectives, so far."""


class Computing(Endpoint, Protocol):
    """What a gradient knows of the worker that computes it."""

    computed_samples: int
    compute_s: float
    processor: Processor


class VirtualMessage(Message, Due):
    """A message under way."""

    __slots__ = ("done", "driver", "receiver")

    def __init__(self, receiver: Endpoint, sender: Address, body: Body, samples: int, stop: bool, notes: Notes) -> None:
        # Field by field, without the base classes: this runs once for every message.
        self.sender = sender
        self.body = body
        self.samples = samples
        self.stop = stop
        self.notes = notes
        self.done = False
        self.driver = None
        self.receiver = receiver

    def happen(self) -> None:
        """Hand it to the receiver's oldest matching receive, or leave it in its mailbox."""
        node = self.receiver
        earlier, received = None, node.receiving
        while received is not None:
            if received.sender is None or received.sender is self.sender:
                if earlier is None:
                    node.receiving = received.following
                else:
                    earlier.following = received.following
                # What `resolve` does, without calling it: this is once per message, too.
                received.value = self
                received.done = True
                if received.on_begun is not None:
                    received.on_begun(self)
                if received.driver is not None:
                    received.driver.go_on()
                return
            earlier, received = received, received.following
        leave(node, self)


class Backward(NamedTuple):
    """A backward pass."""

    processor: Processor
    start_s: float
    end_s: float

    def ready(self, share: float) -> float:
        """When this share of it is done."""
        return self.processor.partway(self.start_s, self.end_s, share)


class VirtualGradient(JoinedLater, Gradient, Due):
    """A gradient that is being computed."""

    __slots__ = ("computed", "done", "driver", "end", "nbytes", "parts", "start", "then", "worker")
    worker: Computing
    nbytes: int
    start: float
    end: float
    computed: int
    """Samples of this computation alone, without those of a gradient it is added to."""
    then: Callable[[], None] | None
    """What follows it at once: the collective that it was handed to before it was computed."""

    @property
    def begun_s(self) -> float:
        """When the forward pass began."""
        return self.start

    def when_known(self, tell: Callable[[Backward], None]) -> None:
        """Tell when the backward pass begins and ends, as soon as that is known."""
        processor = self.worker.processor
        tell(Backward(processor, processor.partway(self.start, self.end, FORWARD_SHARE), self.end))

    def happen(self) -> None:
        worker = self.worker
        simulation = worker.simulation
        now = simulation.clock.time
        worker.computed_samples += self.computed
        worker.compute_s += now - self.start
        if simulation.detail:
            simulation.emit(events.Compute(self.begun_s, now, worker.address.name, self.computed, self.versions[0]))
        if self.then is not None:
            # Let go of first: it leads to the collective, and from there back to this gradient.
            then, self.then = self.then, None
            then()

    def __await__(self) -> Generator[Due, None, Gradient]:
        if not self.done:
            yield self
        return self

    def add(self, other: Gradient) -> None:
        """Make it the sum with an earlier one."""
        both = self + other
        self.total, self.samples, self.versions = both.total, both.samples, both.versions
        self.loss, self.seconds, self.notes, self.sources = both.loss, both.seconds, both.notes, both.sources


class VirtualBatch(Due):
    """A batch that is being loaded."""

    __slots__ = ("_batch", "done", "driver")

    def __init__(self, batch: Batch) -> None:
        self.done = False
        self.driver = None
        self._batch = batch

    def __await__(self) -> Generator[Due, None, Batch]:
        if not self.done:
            yield self
        return self._batch


class VirtualReceive(Answer[Message]):
    """A message that is awaited. Taking it takes in what its sender knew of the run's progress."""

    __slots__ = ("_node", "begun", "following", "on_begun", "sender")

    def __init__(self, node: Endpoint, sender: Address | None) -> None:
        self.done = False
        self.driver = None
        self._node = node
        self.sender = sender
        self.following: VirtualReceive | None = None
        self.begun: Message | None = None
        """What has begun to arrive, layer by layer, and is not done yet."""
        self.on_begun: Callable[[Message], None] | None = None
        """Takes it as soon as it has begun to arrive."""

    def resolve(self, value: Message) -> None:
        # Before whoever awaits it goes on: its parameters are in their places by then.
        if self.on_begun is not None:
            self.on_begun(value)
        super().resolve(value)

    def begin(self) -> None:
        """Be done, with what has begun to arrive, if that has not happened."""
        if not self.done and self.begun is not None:
            self.resolve(self.begun)

    def __await__(self) -> Generator[Answer[Message], None, Message]:
        node = self._node
        if not self.done:
            if node.simulation.detail:
                start = node.simulation.clock.time
                yield self
                waited(node, "message", start, node.simulation.clock.time)
            else:
                yield self
        message, progress = self.value, node.progress
        # What `hear` checks itself, checked before the call: most messages bring nothing new.
        if message.samples > progress.samples or message.stop:
            progress.hear(message.samples, message.stop)
        return message


Arrival = tuple[LayerBucket, float]
"""Layers, and when they arrive."""


class CollectivePart(Answer[Any]):
    """One member's part in a collective: what it contributes, then what it gets."""

    __slots__ = ("arrivals", "backward", "body", "by_layer", "joined_s", "node", "stop", "what")

    def __init__(self, node: Endpoint, what: str, body: Body) -> None:
        self.done = False
        self.driver = None
        self.node = node
        self.backward: Backward | None = None
        """Where its gradient is still being computed: when its layers are there."""
        self.by_layer = False
        """Whether its layers are used as they arrive."""
        self.arrivals: Sequence[Arrival] = ()
        """When layers arrive, of a sum that is not there as a whole yet, the lowest first."""
        self.what = what
        self.body = body
        self.stop = False
        self.joined_s = 0.0

    @property
    def knows_of_stop(self) -> bool:
        """Whether the node has heard that the run is to end."""
        return self.node.progress.stop

    def __await__(self) -> Generator[Answer[Any], None, Any]:
        if not self.done:
            simulation = self.node.simulation
            start = simulation.clock.time
            yield self
            start = max(start, self.joined_s)  # before it joined, it computed
            self.node.waited_s += simulation.clock.time - start
            if simulation.detail:
                waited(self.node, self.what, start, simulation.clock.time)
        # Only now, not when the sum is delivered: nodes that have awaited the same sums must agree on when to stop.
        if self.stop:
            self.node.progress.stop = True
        return self.value


def take_receive(node: Endpoint, sender: Address) -> VirtualReceive | None:
    """A node's oldest receive that wants a message of this sender's, which is not waited for any more from now on."""
    earlier, received = None, node.receiving
    while received is not None and received.sender is not None and received.sender is not sender:
        earlier, received = received, received.following
    if received is not None and earlier is not None:
        earlier.following = received.following
    elif received is not None:
        node.receiving = received.following
    return received


def leave(node: Endpoint, message: Message) -> None:
    """Leave a message that nobody has asked for yet."""
    if node.mailbox is None:
        node.mailbox = deque()
    node.mailbox.append(message)


def waited(node: Endpoint, what: str, start: float, end: float) -> None:
    """Record that a node has waited."""
    if end > start:
        node.simulation.emit(events.Wait(start, end, node.address.name, what))


__all__ = [
    "Arrival",
    "Backward",
    "CollectivePart",
    "Computing",
    "Endpoint",
    "VirtualBatch",
    "VirtualGradient",
    "VirtualMessage",
    "VirtualReceive",
    "leave",
    "take_receive",
    "waited",
]
