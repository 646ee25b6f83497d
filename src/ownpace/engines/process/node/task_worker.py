"""A worker that computes the gradients of a task, at full speed or at a prescribed pace."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

import torch
from torch import Tensor

from ownpace.core.blocks.micro_batch import GRAINS
from ownpace.core.contract import events
from ownpace.core.contract.errors import DivergenceError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Batch, Gradient, Group, Parameters
from ownpace.core.learning.flat import FlatModel, Layout
from ownpace.core.learning.sampling import Sampler
from ownpace.core.learning.task import Samples
from ownpace.engines.process.node.awaitables import Reduced
from ownpace.engines.process.node.nodes import ProcessWorker, Seat
from ownpace.engines.process.node.parameters import Holding
from ownpace.engines.process.node.reporter import WallClock
from ownpace.engines.process.talk.collectives import Departures, Ring
from ownpace.engines.processor import Processor

B = TypeVar("B", Gradient, Tensor)
_LEAD_S = 0.0015
"""How long before a graph is done the next one is queued."""
_NAP_S = 0.0001
_LARGE = 1_000_000
"""Parameters; from there on, looking at all of a gradient costs something."""


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
        worker.card.catch_up()
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
        graphs: bool = False,
    ) -> None:
        super().__init__(seat, holding, batch_size, micro_batch)
        self.model = model
        self.buffers = model.new_buffers()
        self._captured = model.capture(self.buffers) if graphs else None
        self._train = train
        self._sampler = sampler
        self._processor = processor
        self._stopwatch = stopwatch
        self._asked: Computed | None = None
        self._overslept_s = 0.0
        self._sizes: set[int] = set()
        self.card = Card(seat.like.device, lead_s=_LEAD_S if graphs else math.inf)

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

    def take_share(self, start: float, stop: float) -> None:
        self._sampler.assign(self.rank, start, stop)

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
        departures = Departures(ring, buffer, len(self._seat.layout.layers))
        if self._overlaps(ring):
            gradient = self._compute_and_send(body, ring, buffer, departures)
        else:
            gradient = self._compute(body, ring.values(buffer))
            self.keep_pace(body.end_s)
        return self._start_reduced(ring, gradient, buffer, departures.works)

    def warm_up(self) -> None:
        """Compute one gradient for nothing, so that what is made on first use is there when time begins."""
        size = min(self.micro_batch, len(self._train))
        if self._captured is not None:
            for part in range(1, GRAINS + 1):
                self._record(torch.arange(max(1, size * part // GRAINS)))
            return
        self.model.bind(self.holding.values, self.model.new_buffers())
        samples = self._train.pick(torch.arange(size))
        if len(self.holding.values) > _LARGE:
            self.model.gradient_by_layer(*samples, torch.empty_like(self.holding.values), None, _nothing)
        else:
            self.model.gradient(*samples)
        if self._seat.like.device.type == "cuda":
            torch.cuda.synchronize(self._seat.like.device)

    def _prepare(self, indices: Tensor) -> None:
        """Let a card choose its kernels for a new size before the time is taken that such a micro-batch needs."""
        if self._seat.like.device.type == "cuda" and len(indices) not in self._sizes:
            self._sizes.add(len(indices))
            self.model.bind(self.holding.values, [buffer.clone() for buffer in self.buffers])
            self.model.gradient(*self._train.pick(indices))
            torch.cuda.synchronize(self._seat.like.device)

    def _record(self, indices: Tensor) -> None:
        """Record the gradient of as many samples as these, if it is not yet; nothing else changes."""
        assert self._captured is not None
        if not self._captured.knows(len(indices)):
            before = [buffer.clone() for buffer in self.buffers]
            self._captured.set(self.holding.values)
            self._captured.record(*self._train.pick(indices))
            for buffer, value in zip(self.buffers, before, strict=True):
                buffer.copy_(value)

    def _overlaps(self, ring: Ring) -> bool:
        """Whether buckets leave during the backward pass: there are several, and nobody prescribes the pace."""
        return self._processor is None and self._captured is None and ring.size > 1 and len(ring.buckets) > 1

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
        values = self.holding.values
        if self._captured is not None:
            replayed, loss = self._captured.gradient(inputs, targets)
            more = 0 if asked.plus is None else asked.plus.total
            return self._end(asked, begun, torch.add(replayed, more, out=out), loss.clone())
        if values.device.type == "cpu" and len(values) > _LARGE:  # layer by layer: the whole is never there twice
            total = torch.empty_like(values) if out is None else out
            plus = None if asked.plus is None else asked.plus.total
            loss = self.model.gradient_by_layer(inputs, targets, total, plus, _nothing)
        else:
            total, loss = self.model.gradient(inputs, targets, out)
            if asked.plus is not None:
                total.add_(asked.plus.total)
        return self._end(asked, begun, total, loss)

    def _compute_and_send(self, asked: Computed, ring: Ring, buffer: Tensor, departures: Departures) -> Gradient:
        """Compute what was asked for, and send each bucket of it as soon as its layers are ready."""
        begun, indices = self._begin(asked)
        values = ring.values(buffer)
        plus = None if asked.plus is None else asked.plus.total
        inputs, targets = self._train.pick(indices)
        loss = self.model.gradient_by_layer(inputs, targets, values, plus, departures.layer_is_there)
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
        values = self.holding.values if asked.at is None else asked.at.values
        if self._captured is None:
            self._prepare(indices)
            self.model.bind(values, self.buffers)
        else:
            self._record(indices)
            self._captured.set(values)
        self._stopwatch.start()
        return ready, indices

    def _end(self, asked: Computed, begun: float, total: Tensor, loss: Tensor) -> Gradient:
        if self.buffers and self._captured is None:
            self.buffers[:] = self.model.take_buffers()
        seconds = self._stopwatch.stop(asked.samples)
        now = self._clock.now()
        if self._processor is not None and asked.end_s >= now:
            seconds = asked.end_s - begun
        end = max(now, asked.end_s)
        if self._seat.like.device.type == "cuda":  # by the card's clock: ours shows how long queueing took
            begun = now - seconds
        samples = asked.samples
        self._books.work.add(begun, end, samples)
        if self._books.detail:
            self._books.event(events.Compute(begun, end, self.name, samples, asked.versions[0]))
        known: float | Tensor = loss * samples
        seen = self.card.see(loss, seconds, look=self._books.due(now))
        if loss.device.type == "cpu":
            known = float(known)
        if seen is not None:
            self._books.work.loss = seen
            if loss.device.type == "cpu" or not math.isfinite(seen):
                check_finite(self.name, self._samples, seen, total, self._seat.layout, all_=self._books.due(now))
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


def _nothing(layer: int) -> None:
    pass


class Card:
    """How far Python runs ahead of a card: it queues one micro-batch while another is computed, and no more.

    If it waited for each, the card would idle while the next is being queued. If it never did, it would ask whether a
    sum is there long before the gradients for the next one are. So it goes on `lead_s` before a micro-batch is expected
    to be done: at once, if queueing takes long; a moment before, if it is a graph. On a CPU, nothing is ever queued.
    """

    def __init__(self, device: torch.device, lead_s: float) -> None:
        self._lead_s = lead_s
        self._done_s = 0.0
        self._cuda = device.type == "cuda"
        self._device = device
        self._queued: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._known: Tensor | None = None
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def see(self, loss: Tensor, seconds: float, *, look: bool) -> float | None:
        """Note what was queued; returns the loss of what is known to be computed, or None where looking would wait."""
        if not self._cuda:
            return float(loss)
        self._done_s = max(self._done_s, time.monotonic()) + seconds
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append((event, loss))
        while len(self._queued) > 1 and self._queued[0][0].query():
            self._known = self._queued.popleft()[1]
        if not look or self._known is None:
            return None
        known, self._known = self._known, None
        with torch.cuda.stream(self._stream):  # not behind what is queued
            return float(known)

    def catch_up(self) -> None:
        """Wait until the latest of what was queued is all that is left, and is soon done."""
        while len(self._queued) > 1:
            event, self._known = self._queued.popleft()
            event.synchronize()
        while self._queued and time.monotonic() < self._done_s - self._lead_s:
            if self._queued[0][0].query():
                self._done_s = time.monotonic()
                self._known = self._queued.popleft()[1]
            else:
                time.sleep(_NAP_S)


class Stopwatch:
    """How long computing takes: by the wall clock, or by the card's own where work is queued on one."""

    def __init__(self, device: torch.device, clock: WallClock) -> None:
        self._clock = clock
        self._device = device
        self._cuda = device.type == "cuda"
        self._start_s = 0.0
        self._seconds_per_sample = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque()
        self._begun: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begin."""
        if self._cuda:
            self._begun = torch.cuda.Event(enable_timing=True)
            self._begun.record(torch.cuda.current_stream(self._device))
        else:
            self._start_s = self._clock.now()

    def stop(self, samples: int) -> float:
        """Seconds since the start, for so many samples; on a card, as the latest work took that it has finished."""
        if not self._cuda:
            return self._clock.now() - self._start_s
        assert self._begun is not None
        ended = torch.cuda.Event(enable_timing=True)
        ended.record(torch.cuda.current_stream(self._device))
        self._pairs.append((self._begun, ended, samples))
        while self._pairs and self._pairs[0][1].query():
            begun, ended, computed = self._pairs.popleft()
            self._seconds_per_sample = begun.elapsed_time(ended) / 1000 / computed
        return self._seconds_per_sample * samples


def check_finite(who: str, samples: int, loss: float, total: Tensor, layout: Layout, *, all_: bool) -> None:
    """Raise if a gradient is not finite, and say where.

    Of large models, only the first layer is looked at, unless `all_` are to be: what goes wrong in a backward pass ends
    up there, and reading all of it would take a hundredth of the time of computing it.

    Raises:
        DivergenceError: It is not.
    """
    looked_at = total if all_ or len(total) <= _LARGE else total[: layout.layers[0].stop]
    if math.isfinite(loss) and math.isfinite(float(looked_at.sum())):
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
