"""The nodes of a run in virtual time: they answer what `core.asking` says an algorithm may ask for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ownpace.core import events
from ownpace.core.errors import DivergenceError
from ownpace.core.values import Address, Batch, Body, Gradient, Group, Message, Parameters, Role, Shard
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.clock import Answer, Call, Due
from ownpace.engines.virtual.compute import Processor
from ownpace.engines.virtual.learning import Replica

if TYPE_CHECKING:
    from ownpace.engines.virtual.runner import VirtualRun

B = TypeVar("B", Gradient, Tensor)


class Sent(Message, Due):
    """A message under way."""

    __slots__ = ("_receiver", "done", "task")

    def __init__(self, receiver: VirtualNode, sender: Address, body: Body, samples: int, stop: bool) -> None:
        self.sender = sender
        self.body = body
        self.samples = samples
        self.stop = stop
        self.done = False
        self.task = None
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
                if received.task is not None:
                    received.task.go_on()
                return
            earlier, received = received, received.following
        if node._mailbox is None:
            node._mailbox = deque()
        node._mailbox.append(self)

    def __await__(self) -> Generator[Due, None, None]:
        if not self.done:
            yield self


class Computed(Gradient, Due):
    """A gradient that is being computed."""

    __slots__ = ("done", "start", "task", "worker")
    worker: VirtualWorker
    start: float

    def happen(self) -> None:
        worker = self.worker
        worker.samples += self.samples
        worker.compute_s += self.seconds
        if worker._run.detail:
            end = worker._clock._now
            worker._run.emit(events.Compute(self.start, end, worker.name, self.samples, self.versions[0]))

    def __await__(self) -> Generator[Due, None, Gradient]:
        if not self.done:
            yield self
        return self


class Loaded(Due):
    """A batch that is being loaded."""

    __slots__ = ("_batch", "done", "task")

    def __init__(self, batch: Batch) -> None:
        self.done = False
        self.task = None
        self._batch = batch

    def __await__(self) -> Generator[Due, None, Batch]:
        if not self.done:
            yield self
        return self._batch


class Received(Answer[Message]):
    """A message that is awaited. Taking it takes in what its sender knew of the run's progress."""

    __slots__ = ("_node", "following", "sender")

    def __init__(self, node: VirtualNode, sender: Address | None) -> None:
        self.done = False
        self.task = None
        self._node = node
        self.sender = sender
        self.following: Received | None = None

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


class Collected(Answer[Any]):
    """One member's part in a collective: what it contributes, then what it gets."""

    __slots__ = ("_node", "body", "stop", "what")

    def __init__(self, node: VirtualNode, what: str, body: Body) -> None:
        super().__init__()
        self._node = node
        self.what = what
        self.body = body
        self.stop = False

    def __await__(self) -> Generator[Answer[Any], None, Any]:
        if not self.done:
            start = self._node._clock._now
            yield self
            if self._node._run.detail:
                self._node._waited(self.what, start)
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
        self._parts: dict[Address, Collected] = {}

    def join(self, address: Address, what: str, part: Collected) -> bool:
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
        stop = run.clock.now >= run.deadline_s
        for part in self._parts.values():
            part.stop = stop
        run.clock.at(end, Call(partial(self._deliver, result)))
        if run.detail:
            run.emit(events.Transfer(start, end, self._what, self._group.name, nbytes))

    def _deliver(self, result: Any) -> None:
        for member in self._group:
            reduced_elsewhere = self._what == "reduce" and member is not self._root
            self._parts[member].resolve(None if reduced_elsewhere else result)


class VirtualNode(Address):
    """What workers, servers and communicators share: a link, messages, collectives, and knowing when to stop.

    In virtual time, a node is its own address. Large fleets are slow where memory is touched in many places, so
    what is used for every gradient lies in a node's own slots, and not in objects of their own.
    """

    __slots__ = (
        "_budget",
        "_clock",
        "_mailbox",
        "_receiving",
        "_run",
        "_samples",
        "_stop",
        "bandwidth_bytes_per_s",
        "in_free_s",
        "out_free_s",
        "subgroup",
    )
    subgroup: Group

    def __init__(self, run: VirtualRun, role: Role, index: int, name: str, shard: Shard, bandwidth: float) -> None:
        super().__init__(role, index, name, shard)
        self.bandwidth_bytes_per_s = bandwidth
        self.in_free_s = 0.0
        self.out_free_s = 0.0
        self._run = run
        self._clock = run.clock
        self._mailbox: deque[Message] | None = None  # what came before it was asked for
        self._receiving: Received | None = None  # what was asked for before it came: a chain, oldest first
        self._samples = 0
        self._budget = run.budget
        self._stop = False

    @property
    def address(self) -> Address:
        return self

    @property
    def workers(self) -> Group:
        return self._run.workers

    @property
    def servers(self) -> Sequence[Address]:
        return self._run.servers

    @property
    def communicators(self) -> Group:
        return self._run.communicators

    @property
    def training(self) -> bool:
        return self._samples < self._budget and not self._stop

    def send(self, to: Address, body: Body) -> Sent:
        run, now = self._run, self._clock._now
        receiver: VirtualNode = to  # type: ignore[assignment]  # in virtual time, a node is its own address
        nbytes = 0 if body is None else body.nbytes
        # Take up my way out and the receiver's way in, as transport.py says: this is the hottest code of a run.
        start = now if now > self.out_free_s else self.out_free_s
        out = self.out_free_s = start + nbytes / self.bandwidth_bytes_per_s
        free = receiver.in_free_s
        take = nbytes / receiver.bandwidth_bytes_per_s
        into = receiver.in_free_s = (now if now > free else free) + take
        if into < start + take:
            into = start + take
        arrival = (out if out > into else into) + run.latency_s
        if run.detail:
            run.emit(events.Transfer(start, arrival, "send", [self.name, to.name], nbytes))
        sent = Sent(receiver, self, body, self._samples, now >= run.deadline_s)
        self._clock.at_last(arrival, sent)
        return sent

    def receive(self, sender: Address | None = None) -> Received:
        received = Received(self, sender)
        if self._mailbox:
            for message in self._mailbox:
                if sender is None or message.sender is sender:
                    self._mailbox.remove(message)
                    received.resolve(message)
                    return received
        if self._receiving is None:
            self._receiving = received
        else:
            last = self._receiving
            while last.following is not None:
                last = last.following
            last.following = received
        return received

    def all_reduce(self, body: B, group: Group | None = None) -> Collected:
        return self._collective("all-reduce", body, group or self._run.workers, None)

    def reduce(self, body: B | None, to: Address, group: Group) -> Collected:
        return self._collective("reduce", body, group, to)

    def broadcast(self, body: B | None, root: Address, group: Group) -> Collected:
        return self._collective("broadcast", body, group, root)

    def _collective(self, what: str, body: Body, group: Group, root: Address | None) -> Collected:
        part = Collected(self, what, body)
        self._run.join(group, self, what, root, part)
        return part

    def _waited(self, what: str, start: float) -> None:
        now = self._clock._now
        if now > start:
            self._run.emit(events.Wait(start, now, self.name, what))


class VirtualLearner(VirtualNode):
    """A node with parameters: all of them, or a server's shard."""

    __slots__ = ("_replica", "_snapshot", "_values", "_version")

    def __init__(
        self, run: VirtualRun, role: Role, index: int, name: str, shard: Shard, bandwidth: float, replica: Replica
    ) -> None:
        super().__init__(run, role, index, name, shard, bandwidth)
        self._values = replica.values
        self._replica: Replica | None = replica  # None: the values were placed here, and nothing belongs to them yet
        self._version = 0
        self._snapshot: Parameters | None = None

    @property
    def parameters(self) -> Parameters:
        if self._snapshot is None:
            self._snapshot = Parameters(self._values, self._version, self.shard)
        return self._snapshot

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        run = self._run
        if run.real:
            replica = self._replica or Replica(self._values)
            factor = run.lr_factor(self._samples) * lr_scale
            self._replica = replica.step(run.optimizer(self.shard), gradient, factor)
            self._values = self._replica.values
        staleness = self._version - gradient.versions[0]
        self._snapshot = None
        self._version += 1
        self._samples += gradient.samples
        run.updated(self, self._version, gradient.samples, self._samples, staleness)

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        run, values = self._run, self._values
        if run.real:
            replica = self._replica or Replica(self._values)
            factor = run.lr_factor(self._samples) * lr_scale
            values = replica.peek(run.optimizer(self.shard), gradient, factor)
        return Parameters(values, self._version, self.shard)


class VirtualServer(VirtualLearner):
    """A parameter server."""

    __slots__ = ()

    def __init__(self, run: VirtualRun, shard: Shard, bandwidth: float) -> None:
        replica = Replica(run.learning.initial[shard.start : shard.stop])
        super().__init__(run, "server", shard.index, f"server-{shard.index}", shard, bandwidth, replica)


class VirtualCommunicator(VirtualNode):
    """A node that only moves data."""

    __slots__ = ()

    def __init__(self, run: VirtualRun, index: int, bandwidth: float) -> None:
        super().__init__(run, "communicator", index, f"communicator-{index}", run.whole, bandwidth)


class VirtualWorker(VirtualLearner):
    """A worker: a learner with a machine and data."""

    __slots__ = (
        "_processor",
        "_versions",
        "batch_size",
        "buffers",
        "compute_s",
        "load_s",
        "micro_batch",
        "samples",
    )

    def __init__(
        self, run: VirtualRun, rank: int, name: str, bandwidth: float, replica: Replica, num_shards: int
    ) -> None:
        super().__init__(run, "worker", rank, name, run.whole, bandwidth, replica)
        self.batch_size = run.job.batch_size
        self.micro_batch = run.job.micro_batch or run.job.batch_size
        self.buffers = run.learning.new_buffers()
        self.samples = 0
        self.compute_s = 0.0
        self.load_s = 0.0
        self._processor = Processor(run.job.fleet.workers[rank], rank, run.job.seed)
        self._versions = (0,) * num_shards

    @property
    def rank(self) -> int:
        return self.index

    def load(self, samples: int | None = None) -> Loaded:
        samples = self.micro_batch if samples is None else samples
        end = self._load(samples)
        loaded = Loaded(Batch(self._run.draw(self.rank, samples), samples))
        self._clock.at(end, loaded)
        return loaded

    def gradient(
        self, samples: int | None = None, *, at: Parameters | None = None, batch: Batch | None = None
    ) -> Computed:
        run = self._run
        if batch is not None:
            samples, ready = batch.samples, self._clock._now
        else:
            if samples is None:
                samples = self.micro_batch
            ready = self._load(samples) if self._processor.io_s_per_sample else self._clock._now
        start, end = self._processor.compute(ready, samples)
        versions = self._versions if at is None else (at.version,) * len(self._versions)
        if run.real:
            indices = run.draw(self.rank, samples) if batch is None else batch.indices
            values = self._values if at is None else at.values
            total, loss = run.learning.gradient(values, self.buffers, indices)
            if not math.isfinite(loss):
                raise diverged(f"the loss on {self.name}", loss, self._samples)
        else:
            total, loss = run.learning.initial, math.nan
        computed = Computed(total, samples, versions, loss, end - start)
        computed.start = start
        computed.done = False
        computed.task = None
        computed.worker = self
        self._clock.at(end, computed)
        return computed

    def no_gradient(self) -> Gradient:
        return Gradient(torch.zeros_like(self._run.learning.initial), 0, self._versions, 0.0)

    def place(self, parameters: Parameters) -> None:
        version, versions = parameters.version, self._versions
        if len(versions) == 1:
            self._values = parameters.values
            self._versions = (version,)
            self._version = version
        else:
            shard = parameters.shard
            self._values = self._values.clone()
            self._values[shard.start : shard.stop] = parameters.values
            self._versions = (*versions[: shard.index], version, *versions[shard.index + 1 :])
            self._version = min(self._versions)
        self._replica = None
        self._snapshot = None

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        super().step(gradient, lr_scale=lr_scale)
        self._versions = (self._version,) * len(self._versions)

    def tally(self, begun_s: float) -> events.Tally:
        """What this worker did until now, with the part of what it is still at that lies behind it."""
        return events.Tally(self.samples, self.compute_s + begun_s, self.load_s)

    def _load(self, samples: int) -> float:
        start, end = self._processor.load(self._clock._now, samples)
        self.load_s += end - start
        if self._run.detail and end > start:
            self._run.emit(events.Load(start, end, self.name, samples))
        return end


def total(bodies: list[Body]) -> Body:
    """The sum of what the members of a collective bring; None brings nothing."""
    given = [body for body in bodies if body is not None]
    first = given[0]
    if isinstance(first, Gradient):
        gradients = [body for body in given if isinstance(body, Gradient)]
        notes = [gradient.notes for gradient in gradients if gradient.notes is not None]
        return Gradient(
            total=_sum([gradient.total for gradient in gradients]),
            samples=sum(gradient.samples for gradient in gradients),
            versions=tuple(map(min, zip(*(gradient.versions for gradient in gradients), strict=True))),
            loss=sum(gradient.loss for gradient in gradients),
            seconds=sum(gradient.seconds for gradient in gradients),
            notes=_sum(notes) if notes else None,
        )
    return _sum([body for body in given if isinstance(body, Tensor)])


def _sum(tensors: list[Tensor]) -> Tensor:
    result = tensors[0] + tensors[1] if len(tensors) > 1 else tensors[0]
    for tensor in tensors[2:]:
        result += tensor
    return result


def diverged(what: str, loss: float, samples: int) -> DivergenceError:
    """The error for a loss that is no longer finite."""
    return DivergenceError(f"{what} is {loss} at sample {samples}: training diverged; try a smaller lr")
