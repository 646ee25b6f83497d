"""The nodes of a run in virtual time: they answer what `core.asking` says an algorithm may ask for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import DivergenceError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Batch, Body, Gradient, Group, Message, Parameters, Role, Shard
from ownpace.engines.processor import Processor
from ownpace.engines.virtual.awaitables import (
    CollectivePart,
    VirtualBatch,
    VirtualGradient,
    VirtualMessage,
    VirtualReceive,
)
from ownpace.engines.virtual.replica import Replica

if TYPE_CHECKING:
    from ownpace.engines.virtual.run import VirtualRun

B = TypeVar("B", Gradient, Tensor)


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
        self._receiving: VirtualReceive | None = None  # what was asked for before it came: a chain, oldest first
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

    def send(self, to: Address, body: Body) -> VirtualMessage:
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
        sent = VirtualMessage(receiver, self, body, self._samples, now >= run.deadline_s)
        self._clock.at_last(arrival, sent)
        return sent

    def receive(self, sender: Address | None = None) -> VirtualReceive:
        received = VirtualReceive(self, sender)
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

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> CollectivePart:
        return self._collective("all-reduce", cast(Body, body), group or self._run.workers, None)

    def reduce(self, body: B | None, to: Address, group: Group) -> CollectivePart:
        return self._collective("reduce", body, group, to)

    def broadcast(self, body: B | None, root: Address, group: Group) -> CollectivePart:
        return self._collective("broadcast", body, group, root)

    def _collective(self, what: str, body: Body, group: Group, root: Address | None) -> CollectivePart:
        part = CollectivePart(self, what, body)
        if isinstance(body, VirtualGradient) and not body.done:
            body.then = partial(self._run.join, group, self, what, root, part)
        else:
            self._run.join(group, self, what, root, part)
        return part

    def _waited(self, what: str, start: float) -> None:
        now = self._clock._now
        if now > start:
            self._run.emit(events.Wait(start, now, self.name, what))


class VirtualLearner(VirtualNode):
    """A node with parameters: all of them, or a server's shard."""

    __slots__ = ("_ahead", "_replica", "_snapshot", "_values", "_version")

    def __init__(
        self, run: VirtualRun, role: Role, index: int, name: str, shard: Shard, bandwidth: float, replica: Replica
    ) -> None:
        super().__init__(run, role, index, name, shard, bandwidth)
        self._values = replica.values
        self._replica: Replica | None = replica  # None: the values were placed here, and nothing belongs to them yet
        self._version = 0
        self._ahead = 0.0  # by how many samples the schedule is further than the count
        self._snapshot: Parameters | None = None

    @property
    def parameters(self) -> Parameters:
        if self._snapshot is None:
            self._snapshot = Parameters(self._values, self._version, self.shard)
        return self._snapshot

    @property
    def lr(self) -> float:
        run = self._run
        rate = run.optimizer(self.shard).rates[0] if run.real else run.job.optimizer.lr
        return rate * self._lr_factor(1.0)

    def _lr_factor(self, scale: float) -> float:
        return self._run.lr_factor(self._samples + self._ahead) * scale

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        if not gradient.samples:
            return
        if self._run.real:
            self._move(gradient, lr_scale, memory)
        if advance is not None:
            self._ahead += advance - gradient.samples
        self._made_update(gradient)

    def _move(self, gradient: Gradient, lr_scale: float, memory: int) -> None:
        replica = self._replica or Replica(self._values)
        self._replica = replica.step(self._run.optimizer(self.shard), gradient, self._lr_factor(lr_scale), memory)
        self._values = self._replica.values

    def _made_update(self, gradient: Gradient) -> None:
        staleness = self._version - gradient.versions[0]
        self._snapshot = None
        self._version += 1
        self._samples += gradient.samples
        self._run.updated(self, self._version, gradient.samples, self._samples, staleness)

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        run, values = self._run, self._values
        if run.real:
            replica = self._replica or Replica(self._values)
            factor = self._lr_factor(lr_scale)
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

    def load(self, samples: int | None = None) -> VirtualBatch:
        samples = self.micro_batch if samples is None else samples
        end = self._load(samples)
        loaded = VirtualBatch(Batch(self._run.draw(self.rank, samples), samples))
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
        computed = VirtualGradient(total, samples, versions, loss, end - start)
        computed.computed = samples
        if plus is not None:
            add(computed, plus)
        computed.start = start
        computed.then = None
        computed.done = False
        computed.driver = None
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

    def _made_update(self, gradient: Gradient) -> None:
        super()._made_update(gradient)
        self._versions = (self._version,) * len(self._versions)

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        if gradient.samples and self._run.real:
            self._move(gradient, lr_scale, 0)
            self._snapshot = None

    def commit(self, values: Tensor, work: Gradient) -> None:
        if not work.samples:
            return
        if self._run.real:
            self._replica = (self._replica or Replica(self._values)).at(values)
            self._values = values
        self._made_update(work)

    def take_share(self, start: float, stop: float) -> None:
        if self._run.sampler is not None:
            self._run.sampler.assign(self.rank, start, stop)

    def tally(self, begun_s: float) -> events.Tally:
        """What this worker did until now, with the part of what it is still at that lies behind it."""
        return events.Tally(self.samples, self.compute_s + begun_s, self.load_s)

    def _load(self, samples: int) -> float:
        start, end = self._processor.load(self._clock._now, samples)
        self.load_s += end - start
        if self._run.detail and end > start:
            self._run.emit(events.Load(start, end, self.name, samples))
        return end


def add(computed: VirtualGradient, other: Gradient) -> None:
    """Make a gradient that is being computed the sum with an earlier one."""
    both = computed + other
    computed.total, computed.samples, computed.versions = both.total, both.samples, both.versions
    computed.loss, computed.seconds, computed.notes = both.loss, both.seconds, both.notes


def diverged(what: str, loss: float, samples: int) -> DivergenceError:
    """The error for a loss that is no longer finite."""
    return DivergenceError(f"{what} is {loss} at sample {samples}: training diverged; try a smaller lr")
