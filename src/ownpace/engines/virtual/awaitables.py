"""What can be awaited in virtual time: gradients, batches, messages and collectives under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Batch, Body, Gradient, Group, Message, add_up, union
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.clock import Answer, Call, Due

if TYPE_CHECKING:
    from ownpace.engines.virtual.nodes import VirtualNode, VirtualWorker
    from ownpace.engines.virtual.run import VirtualRun


class VirtualMessage(Message, Due):
    """A message under way."""

    __slots__ = ("_receiver", "done", "driver")

    def __init__(self, receiver: VirtualNode, sender: Address, body: Body, samples: int, stop: bool) -> None:
        self.sender = sender
        self.body = body
        self.samples = samples
        self.stop = stop
        self.done = False
        self.driver = None
        self._receiver = receiver

    def happen(self) -> None:
        """Hand it to the oldest fitting receive of the receiver's, or leave it in its mailbox."""
        node = self._receiver
        earlier, received = None, node._receiving
        while received is not None:
            if received.sender is None or received.sender is self.sender:
                if earlier is None:
                    node._receiving = received.following
                else:
                    earlier.following = received.following
                received.value = self
                received.done = True
                if received.driver is not None:
                    received.driver.go_on()
                return
            earlier, received = received, received.following
        if node._mailbox is None:
            node._mailbox = deque()
        node._mailbox.append(self)

    def __await__(self) -> Generator[Due, None, None]:
        if not self.done:
            yield self


class VirtualGradient(Gradient, Due):
    """A gradient that is being computed."""

    __slots__ = ("computed", "done", "driver", "start", "then", "worker")
    worker: VirtualWorker
    start: float
    computed: int
    """Samples of this computation alone, without those of a gradient it was added to."""
    then: Callable[[], None] | None
    """What follows it at once: the collective that it was handed to before it was there."""

    def happen(self) -> None:
        worker = self.worker
        worker.samples += self.computed
        worker.compute_s += worker._clock._now - self.start
        if worker._run.detail:
            end = worker._clock._now
            worker._run.emit(events.Compute(self.start, end, worker.name, self.computed, self.versions[0]))
        if self.then is not None:
            self.then()

    def __await__(self) -> Generator[Due, None, Gradient]:
        if not self.done:
            yield self
        return self


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

    def __init__(self, node: VirtualNode, sender: Address | None) -> None:
        self.done = False
        self.driver = None
        self._node = node
        self.sender = sender
        self.following: VirtualReceive | None = None

    def __await__(self) -> Generator[Answer[Message], None, Message]:
        node = self._node
        if not self.done:
            if node._run.detail:
                start = node._clock._now
                yield self
                node._waited("message", start)
            else:
                yield self
        message = self.value
        if message.samples > node._samples and node.role != "server":  # a server counts its own updates
            node._samples = message.samples
        if message.stop:
            node._stop = True
        return message


class CollectivePart(Answer[Any]):
    """One member's part in a collective: what it contributes, then what it gets."""

    __slots__ = ("_node", "body", "joined_s", "stop", "what")

    def __init__(self, node: VirtualNode, what: str, body: Body) -> None:
        super().__init__()
        self._node = node
        self.what = what
        self.body = body
        self.stop = False
        self.joined_s = 0.0

    @property
    def knows_of_stop(self) -> bool:
        """Whether the node has heard that the run is to end."""
        return self._node._stop

    def __await__(self) -> Generator[Answer[Any], None, Any]:
        if not self.done:
            start = self._node._clock._now
            yield self
            if self._node._run.detail:
                self._node._waited(self.what, max(start, self.joined_s))  # before that, it computed
        if self.stop:
            self._node._stop = True
        return self.value


class Collective:
    """One all-reduce, reduce or broadcast: it begins when its last member has come."""

    def __init__(self, run: VirtualRun, group: Group, what: str, root: Address | None) -> None:
        self._run = run
        self._group = group
        self._what = what
        self._root = root
        self._parts: dict[Address, CollectivePart] = {}

    def join(self, address: Address, what: str, part: CollectivePart) -> bool:
        """Take part; returns whether everybody has come now."""
        if what != self._what:
            raise RuntimeError(f"{address.name} starts a {what} in {self._group.name} where others {self._what}")
        self._parts[address] = part
        if len(self._parts) < len(self._group):
            return False
        self._begin()
        return True

    def waiting(self) -> list[str]:
        """Who waits for whom, for people to read."""
        missing = ", ".join(member.name for member in self._group if member not in self._parts)
        return [f"{member.name} for {missing} in a {self._what}" for member in self._parts]

    def _begin(self) -> None:
        run = self._run
        bodies = [self._parts[member].body for member in self._group]  # in rank order: the sum is reproducible
        result = self._parts[self._root].body if self._what == "broadcast" and self._root else total(bodies)
        nbytes = max(0 if body is None else body.nbytes for body in bodies)
        cost = transport.all_reduce if self._what == "all-reduce" else transport.chain
        links: list[VirtualNode] = list(self._group)  # type: ignore[arg-type]  # nodes are their addresses
        start, end = cost(run.clock.now, links, nbytes, run.latency_s)
        self._tell_who_stops()
        run.clock.at(end, Call(partial(self._deliver, result)))
        if run.detail:
            run.emit(events.Transfer(start, end, self._what, self._group.name, nbytes))

    def _tell_who_stops(self) -> None:
        """Whether the time is up: a sum tells all its members; a broadcast, what its root knows from sums it awaited.

        So groups that broadcast the same sum at different times come to the same end.
        """
        over = self._run.clock.now >= self._run.deadline_s
        if self._what == "broadcast" and self._root is not None:
            over = self._parts[self._root].knows_of_stop
        for member, part in self._parts.items():
            part.stop = over and (self._what != "reduce" or member is self._root)

    def _deliver(self, result: Any) -> None:
        for member in self._group:
            reduced_elsewhere = self._what == "reduce" and member is not self._root
            self._parts[member].resolve(None if reduced_elsewhere else result)


def total(bodies: list[Body]) -> Body:
    """The sum of what the members of a collective bring; None brings nothing."""
    given = [body for body in bodies if body is not None]
    first = given[0]
    if isinstance(first, Gradient):
        return union([body for body in given if isinstance(body, Gradient)])
    return add_up([body for body in given if isinstance(body, Tensor)])
