"""The nodes of a run in virtual time: they answer what `core.asking` says an algorithm may ask for."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ownpace.core import events
from ownpace.core.errors import DivergenceError
from ownpace.core.values import Address, Batch, Body, Gradient, Group, Message, Parameters
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.clock import Answer, Due
from ownpace.engines.virtual.compute import Processor
from ownpace.engines.virtual.learning import Replica

if TYPE_CHECKING:
    from ownpace.engines.virtual.runner import VirtualRun

B = TypeVar("B", Gradient, Tensor)
_NO_INDICES = torch.empty(0, dtype=torch.int64)


class Received(Answer[Message]):
    """A message that is awaited. Taking it takes in what its sender knew of the run's progress."""

    def __init__(self, node: VirtualNode, sender: Address | None) -> None:
        super().__init__(node._clock, node._waited, "message")
        self._node = node
        self.sender = sender

    def accept(self, message: Message) -> Message:
        self._node._learn(message.samples, message.stop)
        return message


class Sent(Due[Message]):
    """A message under way."""

    def __await__(self) -> Any:
        yield from super().__await__()


class Collected(Answer[Any]):
    """One member's part in a collective: what it contributes, then what it gets."""

    def __init__(self, node: VirtualNode, what: str, body: Body) -> None:
        super().__init__(node._clock, node._waited, what)
        self._node = node
        self.body = body
        self.stop = False

    def accept(self, value: Any) -> Any:
        self._node._learn(0, self.stop)
        return value


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
            raise RuntimeError(
                f"{address.name} starts a {what} in group '{self._group.name}' while others {self._what}"
            )
        self._parts[address] = part
        if len(self._parts) < len(self._group):
            return False
        bodies = [self._parts[member].body for member in self._group]  # in rank order: the sum is reproducible
        result = self._parts[self._root].body if self._what == "broadcast" and self._root else total(bodies)
        nbytes = max(_nbytes(body) for body in bodies)
        cost = transport.all_reduce if self._what == "all-reduce" else transport.chain
        links = [self._run.links[member] for member in self._group]
        start, end = cost(self._run.clock.now, links, nbytes, self._run.latency_s)
        stop = self._run.stopping
        for part in self._parts.values():
            part.stop = stop
        Due(self._run.clock, end, result, self._deliver)
        if self._run.detail:
            self._run.emit(events.Transfer(start, end, self._what, self._group.name, nbytes))
        return True

    def _deliver(self, event: Due[Any]) -> None:
        for member in self._group:
            reduced_elsewhere = self._what == "reduce" and member is not self._root
            self._parts[member].resolve(None if reduced_elsewhere else event._value)


class VirtualNode:
    """What workers, servers and communicators share: messages, collectives, and knowing when to stop."""

    def __init__(self, run: VirtualRun, address: Address, subgroup: Group) -> None:
        self.address = address
        self.subgroup = subgroup
        self.workers = run.workers
        self.servers = run.servers
        self.communicators = run.communicators
        self._run = run
        self._clock = run.clock
        self._link = run.links[address]
        self._mailbox: deque[Message] = deque()
        self._receiving: list[Received] = []
        self._samples = 0
        self._budget = run.budget
        self._stop = False
        self.wait_s = 0.0

    @property
    def training(self) -> bool:
        return self._samples < self._budget and not self._stop

    def send(self, to: Address, body: Body) -> Sent:
        run = self._run
        nbytes = _nbytes(body)
        start, arrival = transport.send(self._clock._now, self._link, run.links[to], nbytes, run.latency_s)
        if run.detail:
            run.emit(events.Transfer(start, arrival, "send", [self.address.name, to.name], nbytes))
        message = Message(self.address, body, self._samples, run.stopping)
        return Sent(self._clock, arrival, message, run.nodes[to]._deliver)

    def receive(self, sender: Address | None = None) -> Received:
        received = Received(self, sender)
        for message in self._mailbox:
            if sender is None or message.sender is sender:
                self._mailbox.remove(message)
                received.resolve(message)
                return received
        self._receiving.append(received)
        return received

    def _deliver(self, event: Sent) -> None:
        message: Message = event._value
        for received in self._receiving:
            if received.sender is None or received.sender is message.sender:
                self._receiving.remove(received)
                received.resolve(message)
                return
        self._mailbox.append(message)

    def all_reduce(self, body: B, group: Group | None = None) -> Collected:
        return self._collective("all-reduce", body, group or self.workers, None)

    def reduce(self, body: B | None, to: Address, group: Group) -> Collected:
        return self._collective("reduce", body, group, to)

    def broadcast(self, body: B | None, root: Address, group: Group) -> Collected:
        return self._collective("broadcast", body, group, root)

    def _collective(self, what: str, body: Body, group: Group, root: Address | None) -> Collected:
        part = Collected(self, what, body)
        self._run.join(group, self.address, what, root, part)
        return part

    def _learn(self, samples: int, stop: bool) -> None:
        if samples > self._samples:
            self._samples = samples
        if stop:
            self._stop = True

    def _waited(self, what: str, start: float) -> None:
        now = self._clock._now
        if now > start:
            self.wait_s += now - start
            if self._run.detail:
                self._run.emit(events.Wait(start, now, self.address.name, what))


class VirtualLearner(VirtualNode):
    """A node with parameters: all of them, or a server's shard."""

    def __init__(self, run: VirtualRun, address: Address, subgroup: Group, replica: Replica) -> None:
        super().__init__(run, address, subgroup)
        self._replica = replica
        self._version = 0
        self._snapshot: Parameters | None = None

    @property
    def parameters(self) -> Parameters:
        if self._snapshot is None:
            self._snapshot = Parameters(self._replica.values, self._version, self.address.shard)
        return self._snapshot

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        run = self._run
        staleness = self._version - gradient.versions[0]
        factor = run.lr_factor(self._samples) * lr_scale
        self._replica = run.learning.step(self._replica, run.optimizer(self.address.shard), gradient, factor)
        self._snapshot = None
        self._version += 1
        self._samples += gradient.samples
        run.updated(self, self._version, gradient.samples, self._samples, staleness)

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        run = self._run
        factor = run.lr_factor(self._samples) * lr_scale
        optimizer = run.optimizer(self.address.shard)
        values, _ = optimizer.step(self._replica.values, self._replica.state, gradient.mean, lr_factor=factor)
        return Parameters(values, self._version, self.address.shard)


class VirtualServer(VirtualLearner):
    """A parameter server."""


class VirtualCommunicator(VirtualNode):
    """A node that only moves data."""


class VirtualWorker(VirtualLearner):
    """A worker: a learner with a machine and data."""

    def __init__(
        self, run: VirtualRun, address: Address, subgroup: Group, replica: Replica, processor: Processor
    ) -> None:
        super().__init__(run, address, subgroup, replica)
        self.rank = address.index
        self.batch_size = run.job.batch_size
        self.micro_batch = run.job.micro_batch or run.job.batch_size
        self.buffers = run.learning.new_buffers()
        self.tally = events.Tally(0, 0.0, 0.0, 0.0)
        self._processor = processor
        self._versions = (0,) * max(1, len(run.servers))
        self._mine = False  # whether the parameters are a private copy, to be overwritten shard by shard

    def load(self, samples: int | None = None) -> Due[Batch]:
        samples = self.micro_batch if samples is None else samples
        start, end = self._processor.load(self._clock._now, samples)
        self._loaded(start, end, samples)
        return Due(self._clock, end, Batch(self._draw(samples), samples), _nothing)

    def gradient(
        self, samples: int | None = None, *, at: Parameters | None = None, batch: Batch | None = None
    ) -> Due[Gradient]:
        run = self._run
        ready = self._clock._now
        if batch is None:
            samples = self.micro_batch if samples is None else samples
            start, ready = self._processor.load(ready, samples)
            if ready > start:
                self._loaded(start, ready, samples)
            indices = self._draw(samples)
        else:
            samples, indices = batch.samples, batch.indices
        start, end = self._processor.compute(ready, samples)
        values = self._replica.values if at is None else at.values
        total, loss = run.learning.gradient(values, self.buffers, indices)
        if not math.isfinite(loss) and not run.job.timing_only:
            raise diverged(f"the loss on {self.address.name}", loss, self._samples)
        gradient = Gradient(total, samples, self._versions, loss, end - start)
        return Due(self._clock, end, gradient, self._computed)

    def no_gradient(self) -> Gradient:
        return Gradient(torch.zeros_like(self._replica.values), 0, self._versions, 0.0)

    def place(self, parameters: Parameters) -> None:
        shard = parameters.shard
        if len(self._versions) == 1:
            self._replica = Replica(parameters.values, [], 1)
            self._versions = (parameters.version,)
        else:
            if not self._mine:
                self._replica = Replica(self._replica.values.clone(), [], 1)
                self._mine = True
            self._replica.values[shard.start : shard.stop] = parameters.values
            versions = list(self._versions)
            versions[shard.index] = parameters.version
            self._versions = tuple(versions)
        self._version = parameters.version
        self._snapshot = None

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        super().step(gradient, lr_scale=lr_scale)
        self._versions = (self._version,)

    @property
    def parameters(self) -> Parameters:
        if self._mine:
            return Parameters(self._replica.values.clone(), self._version, self.address.shard)
        return super().parameters

    def _draw(self, samples: int) -> Tensor:
        sampler = self._run.sampler
        return _NO_INDICES if sampler is None else sampler.draw(self.rank, samples)

    def _loaded(self, start: float, end: float, samples: int) -> None:
        self.tally.load_s += end - start
        if self._run.detail and end > start:
            self._run.emit(events.Load(start, end, self.address.name, samples))

    def _computed(self, event: Due[Gradient]) -> None:
        gradient: Gradient = event._value
        tally = self.tally
        tally.samples += gradient.samples
        tally.compute_s += gradient.seconds
        if self._run.detail:
            now = self._clock._now
            who, version = self.address.name, gradient.versions[0]
            self._run.emit(events.Compute(now - gradient.seconds, now, who, gradient.samples, version))


def total(bodies: list[Body]) -> Body:
    """The sum of what the members of a collective bring; None brings nothing."""
    given = [body for body in bodies if body is not None]
    first = given[0]
    if isinstance(first, Gradient):
        gradients = [body for body in given if isinstance(body, Gradient)]
        notes = [gradient.notes for gradient in gradients if gradient.notes is not None]
        return replace(
            first,
            total=_sum([gradient.total for gradient in gradients]),
            samples=sum(gradient.samples for gradient in gradients),
            versions=tuple(map(min, zip(*(gradient.versions for gradient in gradients), strict=True))),
            loss=sum(gradient.loss for gradient in gradients),
            seconds=sum(gradient.seconds for gradient in gradients),
            notes=_sum(notes) if notes else None,
        )
    return _sum([body for body in given if isinstance(body, Tensor)])


def _sum(tensors: list[Tensor]) -> Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result += tensor
    return result


def _nbytes(body: Body) -> int:
    return 0 if body is None else body.nbytes


def diverged(what: str, loss: float, samples: int) -> DivergenceError:
    """The error for a loss that is no longer finite."""
    return DivergenceError(f"{what} is {loss} at sample {samples}: training diverged; try a smaller lr")


def _nothing(event: object) -> None:
    pass
