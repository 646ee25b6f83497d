"""What can be awaited in virtual time: gradients, batches, messages, and one's part in a collective."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Batch, Body, Gradient, Message, Notes
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.clock import Answer, Due
from ownpace.engines.virtual.simulation import Simulation


class Endpoint(Protocol):
    """What awaitables know of a node."""

    address: Address
    simulation: Simulation
    progress: Progress
    mailbox: deque[Message] | None
    """Messages that came before they were asked for."""
    receiving: VirtualReceive | None
    """Messages that were asked for before they came: a chain, oldest first."""


class Computing(Endpoint, Protocol):
    """What a gradient knows of the worker that computes it."""

    computed_samples: int
    compute_s: float


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
                if received.driver is not None:
                    received.driver.go_on()
                return
            earlier, received = received, received.following
        if node.mailbox is None:
            node.mailbox = deque()
        node.mailbox.append(self)


class VirtualGradient(Gradient, Due):
    """A gradient that is being computed."""

    __slots__ = ("computed", "done", "driver", "start", "then", "worker")
    worker: Computing
    start: float
    computed: int
    """Samples of this computation alone, without those of a gradient it is added to."""
    then: Callable[[], None] | None
    """What follows it at once: the collective that it was handed to before it was computed."""

    def happen(self) -> None:
        worker = self.worker
        simulation = worker.simulation
        now = simulation.clock.time
        worker.computed_samples += self.computed
        worker.compute_s += now - self.start
        if simulation.detail:
            simulation.emit(events.Compute(self.start, now, worker.address.name, self.computed, self.versions[0]))
        if self.then is not None:
            self.then()

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

    __slots__ = ("_node", "following", "sender")

    def __init__(self, node: Endpoint, sender: Address | None) -> None:
        self.done = False
        self.driver = None
        self._node = node
        self.sender = sender
        self.following: VirtualReceive | None = None

    def __await__(self) -> Generator[Answer[Message], None, Message]:
        node = self._node
        if not self.done:
            if node.simulation.detail:
                start = node.simulation.clock.time
                yield self
                waited(node, "message", start)
            else:
                yield self
        message, progress = self.value, node.progress
        # What `hear` checks itself, checked before the call: most messages bring nothing new.
        if message.samples > progress.samples or message.stop:
            progress.hear(message.samples, message.stop)
        return message


class CollectivePart(Answer[Any]):
    """One member's part in a collective: what it contributes, then what it gets."""

    __slots__ = ("_node", "body", "joined_s", "stop", "what")

    def __init__(self, node: Endpoint, what: str, body: Body) -> None:
        super().__init__()
        self._node = node
        self.what = what
        self.body = body
        self.stop = False
        self.joined_s = 0.0

    @property
    def knows_of_stop(self) -> bool:
        """Whether the node has heard that the run is to end."""
        return self._node.progress.stop

    def __await__(self) -> Generator[Answer[Any], None, Any]:
        if not self.done:
            simulation = self._node.simulation
            start = simulation.clock.time
            yield self
            if simulation.detail:
                waited(self._node, self.what, max(start, self.joined_s))  # before it joined, it computed
        # Only now, not when the sum is delivered: nodes that have awaited the same sums must agree on when to stop.
        if self.stop:
            self._node.progress.stop = True
        return self.value


def waited(node: Endpoint, what: str, start: float) -> None:
    """Record that a node has waited since `start`."""
    now = node.simulation.clock.time
    if now > start:
        node.simulation.emit(events.Wait(start, now, node.address.name, what))


__all__ = ["CollectivePart", "Endpoint", "VirtualBatch", "VirtualGradient", "VirtualMessage", "VirtualReceive"]
