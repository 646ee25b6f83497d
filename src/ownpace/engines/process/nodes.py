"""The nodes of a run on real processes: they answer what `core.asking` says an algorithm may ask for.

One process is one node, and runs one coroutine. Awaiting blocks: nothing else has to happen here meanwhile, so the
coroutine never suspends (but in a user's own loop, which computes the gradients: `ownpace.join`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core import events
from ownpace.core.asking import Pending
from ownpace.core.errors import DivergenceError, MachineDied
from ownpace.core.flat import FlatModel, Layout
from ownpace.core.sampling import Sampler
from ownpace.core.task import Samples
from ownpace.core.values import Address, Batch, Body, Gradient, Group, Message, Parameters, Shard
from ownpace.engines.compute import Processor
from ownpace.engines.process.books import Books, WallClock
from ownpace.engines.process.collectives import Ring, Wiring, finish
from ownpace.engines.process.holding import Holding
from ownpace.engines.process.post import Post
from ownpace.engines.process.roll import Roll
from ownpace.engines.process.wire import Limits, Packet, unpack

B = TypeVar("B", Gradient, Tensor)
_TICK_S = 0.2
_SHORT_S = 2e-5
"""A wait that is shorter than this is none."""


class Released(BaseException):
    """The last worker has ended: servers and communicators may go home."""


@dataclass(frozen=True)
class Seat:
    """What a node is given to work with."""

    address: Address
    roll: Roll
    layout: Layout
    like: Tensor
    """An empty tensor of the parameters' type and device."""
    post: Post
    wiring: Wiring
    clock: WallClock
    books: Books
    budget: float
    """Samples after which training is over."""
    deadline_s: float
    eval_every: float
    lr_factor: Callable[[int], float]
    alarms: Sequence[str]
    """What this process was told to give up for, as soon as somebody looks."""
    stops: Sequence[str]
    """Signals that asked this process to come to an end."""
    leads: bool
    """Whether this node's parameters, among those of all replicas, are the ones that are judged and saved."""


class ProcessNode:
    """What workers, servers and communicators share: letters, collectives, and knowing when to stop."""

    def __init__(self, seat: Seat) -> None:
        self.address = seat.address
        self.name = seat.address.name
        self._seat = seat
        self._roll = seat.roll
        self._clock = seat.clock
        self._books = seat.books
        self._limits = Limits(seat.roll.shards or (seat.roll.workers.members[0].shard,), seat.layout.size)
        self._mailbox: deque[Message] = deque()
        self._receiving: list[Received] = []
        self._rings: dict[str, Ring] = {}
        self._samples = 0
        self._budget = seat.budget
        self._stop = False
        self._told_to_stop = False
        self._released = False
        self._controls: deque[dict[str, Any]] = deque()

    @property
    def workers(self) -> Group:
        return self._roll.workers

    @property
    def servers(self) -> Sequence[Address]:
        return self._roll.servers

    @property
    def communicators(self) -> Group:
        return self._roll.communicators

    @property
    def subgroup(self) -> Group:
        return self._roll.subgroup(self.address)

    @property
    def training(self) -> bool:
        return self._samples < self._budget and not self._stop

    @property
    def wants_stop(self) -> bool:
        """Whether this node has reason to end the run; the others hear of it with what it sends next."""
        if self._seat.post.waiting:
            self.sort_mail(0.0)
        if self._seat.stops:
            self._told_to_stop = True
        return self._told_to_stop or self._stop or self._clock.now() >= self._seat.deadline_s

    # ---- letters ----

    def send(self, to: Address, body: Body) -> Sent:
        self._settle()
        packet = Packet(body, self._samples, self.wants_stop, self._clock.now(), tuple(self._rates()))
        self._seat.post.send(to.name, packet)
        return Sent()

    def _rates(self) -> Sequence[float]:
        return ()

    def receive(self, sender: Address | None = None) -> Received:
        self._settle()
        received = Received(self, sender)
        for message in self._mailbox:
            if sender is None or message.sender is sender:
                self._mailbox.remove(message)
                received.message = message
                return received
        self._receiving.append(received)
        return received

    def sort_mail(self, timeout_s: float | None) -> None:
        """Take in every letter there is; wait for one, if there is none, but not longer than that."""
        if self._seat.alarms:
            raise MachineDied(self._seat.alarms[0])
        while (letter := self._seat.post.receive(timeout_s)) is not None:
            timeout_s = 0.0
            name, frames = letter
            packet = unpack(frames, self._limits)
            if packet.control is not None:
                self._heed({**packet.control, "body": packet.body})
            else:
                self._deliver(name, packet)

    def _heed(self, control: Any) -> None:
        if control["what"] == "stop":
            self._told_to_stop = True
        elif control["what"] == "release":
            self._released = True
        else:
            self._controls.append(control)

    def control(self, what: str) -> dict[str, Any]:
        """The hub's next word of that kind."""
        while True:
            for control in self._controls:
                if control["what"] == what:
                    self._controls.remove(control)
                    return control
            self.sort_mail(_TICK_S)

    def await_farewell(self) -> list[str]:
        """Wait until everybody has ended; returns the lines of what the run came to."""
        lines: list[str] = self.control("bye")["events"]
        return lines

    def _deliver(self, name: str, packet: Packet) -> None:
        sender = self._roll.by_name[name]
        now = self._clock.now()
        if self._books.detail and now > 0:
            nbytes = 0 if packet.body is None else packet.body.nbytes
            self._books.event(events.Transfer(min(packet.sent_s, now), now, "send", [name, self.name], nbytes))
        if packet.rates:
            self._hear_rates(packet.rates)
        body = packet.body
        if body is not None:
            body = _on(body, self._seat.like.device)
        message = Message(sender, body, packet.samples, packet.stop)
        for received in self._receiving:
            if received.sender is None or received.sender is sender:
                self._receiving.remove(received)
                received.message = message
                return
        self._mailbox.append(message)

    def _hear_rates(self, rates: Sequence[float]) -> None:
        pass

    # ---- collectives ----

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Reduced:
        self._settle()
        ring = self.ring(group or self._roll.workers)
        if isinstance(body, Tensor):
            return self._reduced("all-reduce", ring, body, ring.all_reduce_tensors)
        assert isinstance(body, Gradient)
        buffer = ring.buffer()
        ring.values(buffer).copy_(body.total)
        return self._start_reduced(ring, body, buffer)

    def _start_reduced(self, ring: Ring, body: Gradient, buffer: Tensor, works: Sequence[Any] = ()) -> Reduced:
        now = self._clock.now()
        header = ring.header(body, self.wants_stop, now)
        works = [*works, *ring.all_reduce(header, buffer, launched=len(works))]
        return Reduced(self, "all-reduce", ring, works, header, buffer, now)

    def reduce(self, body: B | None, to: Address, group: Group) -> Reduced:
        self._settle()
        ring, root = self.ring(group), group.members.index(to)
        return self._reduced("reduce", ring, body, lambda tensors: ring.reduce(tensors, root), root)

    def broadcast(self, body: B | None, root: Address, group: Group) -> Reduced:
        self._settle()
        ring, index = self.ring(group), group.members.index(root)
        return self._reduced("broadcast", ring, body, lambda tensors: ring.broadcast(tensors, index), index)

    def _reduced(
        self,
        what: str,
        ring: Ring,
        body: Gradient | Tensor | None,
        start: Callable[[Sequence[Tensor]], list[Any]],
        root: int | None = None,
    ) -> Reduced:
        now = self._clock.now()
        header = ring.header(body, self.wants_stop, now)
        if isinstance(body, Tensor):
            values = body.detach().clone()
        else:
            values = ring.values(ring.buffer())
            if body is None:
                values.zero_()
            else:
                values.copy_(body.total)
        works = start([header, values])
        reduced = Reduced(self, what, ring, works, header, values, now)
        reduced.is_tensor = isinstance(body, Tensor)
        reduced.root = root
        return reduced

    def ring(self, group: Group) -> Ring:
        """This node's place in a group's collectives."""
        ring = self._rings.get(group.name)
        if ring is None:
            seat = self._seat
            ring = self._rings[group.name] = Ring(
                group.name,
                group.members.index(self.address),
                len(group),
                seat.layout,
                seat.like,
                max(1, len(self._roll.shards)),
                seat.wiring,
            )
        return ring

    def wait_for(self, works: Sequence[Any], group: str) -> None:
        """Wait for a collective. Who need not be there any more is released from it."""
        try:
            finish(works, group, self._tick)
        except MachineDied:
            self.sort_mail(_TICK_S)
            self._tick()
            raise

    def _tick(self) -> None:
        self.sort_mail(0.0)
        if self._released:
            raise Released

    def waited(self, what: str, start: float) -> None:
        """Note that this node had nothing to do since `start`."""
        now = self._clock.now()
        if self._books.detail and now - start > _SHORT_S:
            self._books.event(events.Wait(start, now, self.name, what))
        self._books.maybe_report(now)

    def take_in(self, samples: int, stop: bool) -> None:
        """Hear of the run's progress."""
        if samples > self._samples and self.address.role != "server":  # a server counts its own updates
            self._samples = samples
        if stop:
            self._stop = True

    def _settle(self) -> None:
        """Do what was asked for and not awaited yet, because something is asked for that may depend on it."""


class Sent:
    """A message that is under way: ZeroMQ delivers it, whatever this process does next."""

    done = True

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class Received:
    """A message that is awaited. Taking it takes in what its sender knew of the run's progress."""

    def __init__(self, node: ProcessNode, sender: Address | None) -> None:
        self._node = node
        self.sender = sender
        self.message: Message | None = None

    @property
    def done(self) -> bool:
        if self.message is None:
            self._node.sort_mail(0.0)
        return self.message is not None

    def __await__(self) -> Generator[Any, Any, Message]:
        node = self._node
        if self.message is None:
            start = node._clock.now()
            node._books.maybe_report(start)
            node.sort_mail(0.0)
            while self.message is None:
                node.sort_mail(_TICK_S)
                if node._released:
                    raise Released
            node.waited("message", start)
        message = self.message
        node.take_in(message.samples, message.stop)
        return message
        yield


class Reduced:
    """A collective under way."""

    def __init__(
        self,
        node: ProcessNode,
        what: str,
        ring: Ring,
        works: Sequence[Any],
        header: Tensor,
        buffer: Tensor,
        came_s: float,
    ) -> None:
        self._node = node
        self._what = what
        self._ring = ring
        self._works = works
        self._header = header
        self._buffer = buffer
        self._came_s = came_s
        self.is_tensor = False
        self.root: int | None = None
        self._result: Any = self

    @property
    def done(self) -> bool:
        return self._result is not self or all(work is None or work.is_completed() for work in self._works)

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._result is self:
            self._result = self._finish()
        return self._result
        yield

    def _finish(self) -> Any:
        node, ring, buffer = self._node, self._ring, self._buffer
        start = node._clock.now()
        node.wait_for(self._works, ring.name)
        node.waited(self._what, start)
        self._works = ()
        whole = self._what == "all-reduce" and not self.is_tensor
        header = (buffer[: ring.head] if whole and ring.joint else self._header).cpu()
        values = ring.values(buffer) if whole else buffer
        if self._what == "reduce" and ring.index != self.root:
            return None
        if node._books.detail and ring.index == 0:
            begun = max(self._came_s, ring.last_came_s(header))
            end = node._clock.now()
            node._books.event(events.Transfer(min(begun, end), end, self._what, ring.name, values.nbytes))
        if float(header[0]) > 0:
            node.take_in(0, True)
        if self.is_tensor:
            return values
        total = ring.read(header, values)
        if self._what == "broadcast":
            total.shares = ()
        return total


class ProcessLearner(ProcessNode):
    """A node with parameters: all of them, or a server's shard."""

    def __init__(self, seat: Seat, holding: Holding) -> None:
        super().__init__(seat)
        self.holding = holding
        self._version = 0
        self._next_eval = seat.eval_every

    @property
    def parameters(self) -> Parameters:
        return Parameters(self.holding.snapshot(), self._version, self.address.shard)

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        if not gradient.samples:
            return
        self._settle()
        self._maybe_freeze()
        self.holding.step(gradient, self._seat.lr_factor(self._samples) * lr_scale)
        self._version += 1
        self._samples += gradient.samples
        self._count(gradient)

    def _count(self, gradient: Gradient) -> None:
        now, seat, stats = self._clock.now(), self._seat, self._books.stats
        staleness = self._version - 1 - gradient.versions[0]
        if not stats.frozen:
            stats.updates, stats.samples, stats.t = self._version, self._samples, now
            stats.staleness_sum += staleness
            stats.staleness_max = max(stats.staleness_max, staleness)
            stats.frozen = self._samples >= seat.budget
        if self._books.detail:
            update = events.Update(now, self.name, self._version, gradient.samples, self._samples, staleness)
            self._books.event(update)
        if self._samples >= self._next_eval:
            self._next_eval = (self._samples // seat.eval_every + 1) * seat.eval_every
            self.show(now)
        self._books.maybe_report(now)

    def _maybe_freeze(self) -> None:
        """Close the sums if the run's time is up: what follows is only the end of what was in flight."""
        stats, now = self._books.stats, self._clock.now()
        if not stats.frozen and (now >= self._seat.deadline_s or self._told_to_stop):
            stats.t = min(now, self._seat.deadline_s)
            stats.frozen = True

    def show(self, now: float, *, final: bool = False) -> None:
        """Let the hub judge the parameters as they are now."""
        if self._seat.leads or self.address.role == "server":
            self._books.say(
                "snapshot",
                self.holding.snapshot(),
                t=now,
                samples=self._samples,
                updates=self._version,
                shard=self.address.shard.index,
                final=final,
            )

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        values = self.holding.peek(gradient, self._seat.lr_factor(self._samples) * lr_scale)
        return Parameters(values, self._version, self.address.shard)


class ProcessServer(ProcessLearner):
    """A parameter server."""

    def _heed(self, control: Any) -> None:
        if control["what"] == "pull":  # what the user's own loop asks for, outside of the algorithm
            body = self.holding.snapshot()
            answer = {"what": "pulled", "shard": self.address.shard.index, "version": self._version}
            self._seat.post.send(control["who"], Packet(body, control=answer))
        else:
            super()._heed(control)

    def _hear_rates(self, rates: Sequence[float]) -> None:
        self.holding.set_rates(rates)


class ProcessCommunicator(ProcessNode):
    """A node that only moves data."""


class ProcessWorker(ProcessLearner):
    """A worker, but for how it computes its gradients."""

    def __init__(self, seat: Seat, holding: Holding, batch_size: int, micro_batch: int) -> None:
        super().__init__(seat, holding)
        self.batch_size = batch_size
        self.micro_batch = micro_batch
        self._versions = (0,) * max(1, len(self._roll.shards))

    @property
    def rank(self) -> int:
        return self.address.index

    def no_gradient(self) -> Gradient:
        return Gradient(torch.zeros_like(self.holding.values), 0, self._versions, 0.0)

    def place(self, parameters: Parameters) -> None:
        self._settle()
        self.holding.place(parameters.values, parameters.shard)
        index = parameters.shard.index
        self._versions = (*self._versions[:index], parameters.version, *self._versions[index + 1 :])
        self._version = min(self._versions)
        if self._samples >= self._next_eval:
            self._next_eval = (self._samples // self._seat.eval_every + 1) * self._seat.eval_every
            self.show(self._clock.now())

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        super().step(gradient, lr_scale=lr_scale)
        self._versions = (self._version,) * len(self._versions)

    def _rates(self) -> Sequence[float]:
        return self.holding.rates()

    def versions_at(self, at: Parameters | None) -> tuple[int, ...]:
        """The versions of the parameters that a gradient is computed at."""
        return self._versions if at is None else (at.version,) * len(self._versions)


class Computed:
    """A gradient that was asked for. It is computed when it is needed."""

    def __init__(
        self, worker: TaskWorker, samples: int, at: Parameters | None, batch: Batch | None, plus: Gradient | None
    ) -> None:
        self._worker = worker
        self.samples = samples
        self.at = at
        self.batch = batch
        self.plus = plus
        self.versions = worker.versions_at(at)
        self.gradient: Gradient | None = None
        self.end_s = 0.0

    @property
    def done(self) -> bool:
        self._worker._settle()
        return self._worker._clock.now() >= self.end_s

    def __await__(self) -> Generator[Any, Any, Gradient]:
        worker = self._worker
        worker._settle()
        worker.keep_pace(self.end_s)
        assert self.gradient is not None, "this gradient was handed to a collective, and is its own now"
        return self.gradient
        yield


class Loaded:
    """A batch that was drawn and is being loaded."""

    def __init__(self, worker: TaskWorker, batch: Batch, end_s: float) -> None:
        self._worker = worker
        self._batch = batch
        self._end_s = end_s

    @property
    def done(self) -> bool:
        return self._worker._clock.now() >= self._end_s

    def __await__(self) -> Generator[Any, Any, Batch]:
        self._worker.keep_pace(self._end_s)
        return self._batch
        yield


class TaskWorker(ProcessWorker):
    """A worker that computes the gradients of a task, at full speed or at a prescribed pace."""

    def __init__(
        self,
        seat: Seat,
        holding: Holding,
        batch_size: int,
        micro_batch: int,
        *,
        model: FlatModel,
        train: Samples,
        sampler: Sampler,
        processor: Processor | None,
        stopwatch: Stopwatch,
    ) -> None:
        super().__init__(seat, holding, batch_size, micro_batch)
        self.model = model
        self.buffers = model.new_buffers()
        self._train = train
        self._sampler = sampler
        self._processor = processor
        self._stopwatch = stopwatch
        self._asked: Computed | None = None
        self._overslept_s = 0.0

    # ---- what an algorithm asks for ----

    def load(self, samples: int | None = None) -> Loaded:
        samples = self.micro_batch if samples is None else samples
        start = self._clock.now()
        batch = Batch(self._sampler.draw(self.rank, samples), samples)
        end = start if self._processor is None else self._processor.load(start, samples)[1]
        self._loaded(start, end, samples)
        return Loaded(self, batch, end)

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> Computed:
        self._settle()
        samples = batch.samples if batch is not None else self.micro_batch if samples is None else samples
        self._asked = Computed(self, samples, at, batch, plus)
        return self._asked

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Reduced:
        if not isinstance(body, Computed):
            return super().all_reduce(body, group)
        if body is not self._asked:  # it has been computed before it was handed over
            self._settle()
            assert body.gradient is not None
            self.keep_pace(body.end_s)
            return super().all_reduce(body.gradient, group)
        self._asked = None
        ring = self.ring(group or self._roll.workers)
        buffer = ring.buffer()
        works: list[Any] = []
        if self._processor is None and ring.size > 1 and len(ring.buckets) > 1:
            gradient = self._compute_and_send(body, ring, buffer, works)
        else:
            gradient = self._compute(body, ring.values(buffer))
            self.keep_pace(body.end_s)
        return self._start_reduced(ring, gradient, buffer, works)

    def warm_up(self) -> None:
        """Compute one gradient for nothing, so that what is made on first use is there when time begins."""
        size = min(self.micro_batch, len(self._train))
        self.model.bind(self.holding.values, self.model.new_buffers())
        self.model.gradient(*self._train.pick(torch.arange(size)))
        if self._seat.like.device.type == "cuda":
            torch.cuda.synchronize(self._seat.like.device)

    def _settle(self) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            asked.gradient = self._compute(asked, None)

    def keep_pace(self, until_s: float) -> None:
        """Wait until the prescribed time is over."""
        if self._processor is not None and until_s > self._clock.now():
            self._overslept_s = self._clock.sleep_until(until_s)
        self._books.maybe_report(self._clock.now())

    # ---- computing ----

    def _compute(self, asked: Computed, out: Tensor | None) -> Gradient:
        """Compute what was asked for, into `out` if that is given."""
        begun, indices = self._begin(asked)
        inputs, targets = self._train.pick(indices)
        total, loss = self.model.gradient(inputs, targets, out)
        if asked.plus is not None:
            total = torch.add(total, asked.plus.total, out=out)
        return self._end(asked, begun, total, loss)

    def _compute_and_send(self, asked: Computed, ring: Ring, buffer: Tensor, works: list[Any]) -> Gradient:
        """Compute what was asked for, and send each bucket of it as soon as its layers are ready."""
        begun, indices = self._begin(asked)
        values = ring.values(buffer)
        missing = len(self._seat.layout.layers)
        ready = [False] * missing

        def on_layer(index: int) -> None:
            ready[index] = True
            while len(works) < len(ring.buckets) - 1:  # the last one takes the header along
                first = ring.buckets[len(works)][0]
                above = ring.buckets[len(works) - 1][0] if works else len(ready)
                if not all(ready[first:above]):
                    return
                works.append(ring.launch(buffer, len(works)))

        plus = None if asked.plus is None else asked.plus.total
        inputs, targets = self._train.pick(indices)
        loss = self.model.gradient_by_layer(inputs, targets, values, plus, on_layer)
        return self._end(asked, begun, values, loss)

    def _begin(self, asked: Computed) -> tuple[float, Tensor]:
        ready = start = self._clock.now()
        if asked.batch is None:
            indices = self._sampler.draw(self.rank, asked.samples)
            if self._processor is not None and self._processor.io_s_per_sample:
                ready = self._processor.load(start, asked.samples)[1]
                self._loaded(start, ready, asked.samples)
        else:
            indices = asked.batch.indices
        if self._processor is not None:
            self._overslept_s, overslept = 0.0, self._overslept_s
            ready, asked.end_s = self._processor.compute(ready - overslept, asked.samples)
        self.model.bind(self.holding.values if asked.at is None else asked.at.values, self.buffers)
        self._stopwatch.start()
        return ready, indices

    def _end(self, asked: Computed, begun: float, total: Tensor, loss: Tensor) -> Gradient:
        if self.buffers:
            self.buffers[:] = self.model.take_buffers()
        seconds = self._stopwatch.stop()
        now = self._clock.now()
        if self._processor is not None and asked.end_s >= now:
            seconds = asked.end_s - begun
        end = max(now, asked.end_s)
        samples = asked.samples
        self._books.work.add(begun, end, samples)
        if self._books.detail:
            self._books.event(events.Compute(begun, end, self.name, samples, asked.versions[0]))
        known: float | Tensor = loss * samples
        if loss.device.type == "cpu" or self._books.due(now):  # on a card, looking means waiting for it
            known = float(known)
            self._books.work.loss = known / samples
            check_finite(self.name, self._samples, known / samples, total, self._seat.layout)
        gradient = Gradient(total, samples, asked.versions, known, seconds)
        if asked.plus is not None:
            plus = asked.plus
            gradient.samples += plus.samples
            gradient.versions = tuple(map(min, gradient.versions, plus.versions))
            gradient.loss += plus.loss
            gradient.seconds += plus.seconds
        return gradient

    def _loaded(self, start: float, end: float, samples: int) -> None:
        self._books.work.load_s += end - start
        if self._books.detail and end > start:
            self._books.event(events.Load(start, end, self.name, samples))

    def show(self, now: float, *, final: bool = False) -> None:
        if self.buffers:
            flat = torch.cat([buffer.detach().reshape(-1).double() for buffer in self.buffers])
            self._books.say("buffers", flat)
        super().show(now, final=final)


class Stopwatch:
    """How long computing takes: by the wall clock, or by the card's own where work is queued on one."""

    def __init__(self, device: torch.device, clock: WallClock) -> None:
        self._clock = clock
        self._cuda = device.type == "cuda"
        self._start_s = 0.0
        self._seconds = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._begun: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begin."""
        if self._cuda:
            self._begun = torch.cuda.Event(enable_timing=True)
            self._begun.record()
        else:
            self._start_s = self._clock.now()

    def stop(self) -> float:
        """Seconds since the start; on a card, of the latest work that it has finished by now."""
        if not self._cuda:
            return self._clock.now() - self._start_s
        assert self._begun is not None
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        self._pairs.append((self._begun, ended))
        while self._pairs and self._pairs[0][1].query():
            begun, ended = self._pairs.popleft()
            self._seconds = begun.elapsed_time(ended) / 1000
        return self._seconds


def check_finite(who: str, samples: int, loss: float, total: Tensor, layout: Layout) -> None:
    """Raise if a gradient is not finite, and say where.

    Raises:
        DivergenceError: It is not.
    """
    if math.isfinite(loss) and math.isfinite(float(total.sum())):
        return
    for layer in layout.layers:
        part = total[layer.start : layer.stop]
        finite = torch.isfinite(part)
        if not bool(finite.all()):
            value = float(part[~finite][0])
            raise DivergenceError(
                f"the gradient of layer '{layer.name}' on {who} is {value} at sample {samples} (its loss is {loss:g}): "
                "training diverged; try a smaller lr"
            )
    if not math.isfinite(loss):
        raise DivergenceError(f"the loss on {who} is {loss} at sample {samples}: training diverged; try a smaller lr")


def _on(body: Body, device: torch.device) -> Body:
    """The same body on this device."""
    if device.type == "cpu" or body is None:
        return body
    if isinstance(body, Gradient):
        body.total = body.total.to(device)
    elif isinstance(body, Parameters):
        body.values = body.values.to(device)
    else:
        return body.to(device)
    return body


def shared_counter(store: dist.Store, name: str) -> Callable[[int], int]:
    """A count that all processes share: adds to it, and returns what it was before."""
    return lambda number: int(store.add(name, number)) - number


__all__ = [
    "ProcessCommunicator",
    "ProcessServer",
    "ProcessWorker",
    "Released",
    "Seat",
    "Shard",
    "Stopwatch",
    "TaskWorker",
]
