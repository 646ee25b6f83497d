"""A worker's gradients of a task, at full speed or at a prescribed pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Batch, Gradient, Group, Notes, Parameters
from ownpace.core.learning.sampling import Sampler
from ownpace.engines.process.node.computer import GradientComputer
from ownpace.engines.process.node.finite import check_finite
from ownpace.engines.process.node.gpu import GpuQueue, Stopwatch
from ownpace.engines.process.node.inbox import TICK_S
from ownpace.engines.process.node.layered_pass import BackwardPass, ForwardPass, LayerPace, LeavingBuckets, Push
from ownpace.engines.process.node.receiving import ProcessReceive
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.collectives import GroupCollectives
from ownpace.engines.processor import Processor


@dataclass(slots=True, eq=False)
class ProcessGradient:
    """A gradient that was asked for. It is computed when it is needed."""

    _source: TaskGradients
    samples: int
    at: Parameters | None
    batch: Batch | None
    plus: Gradient | None
    versions: tuple[int, ...]
    gradient: Gradient | None = None
    end_s: float = 0.0
    """When the prescribed time for it is over."""
    pushes: list[Push] = field(default_factory=list)
    """To whom it goes as soon as it is computed."""
    arriving: list[ProcessReceive] = field(default_factory=list)
    """Parameters that it is to be computed at, and that have yet to come."""

    @property
    def done(self) -> bool:
        return self._source.is_over(self)

    def __await__(self) -> Generator[object, None, Gradient]:
        self._source.bring(self)
        assert self.gradient is not None, "this gradient was handed to a collective, and is its own now"
        return self.gradient
        # Never reached: it makes this a generator, which is what `await` needs.
        yield


@dataclass(slots=True, eq=False)
class ProcessBatch:
    """A batch that was drawn and is being loaded."""

    _source: TaskGradients
    _batch: Batch
    _end_s: float

    @property
    def done(self) -> bool:
        return self._source.clock.now() >= self._end_s

    def __await__(self) -> Generator[object, None, Batch]:
        self._source.keep_pace(self._end_s)
        return self._batch
        # Never reached: it makes this a generator, which is what `await` needs.
        yield


class TaskGradients:
    """Draws samples, computes their gradients, and makes that take as long as prescribed."""

    def __init__(
        self,
        worker: ProcessWorker,
        computer: GradientComputer,
        sampler: Sampler,
        processor: Processor | None,
    ) -> None:
        context = worker.context
        self.clock = context.clock
        self._worker = worker
        self._reporter = context.reporter
        self._computer = computer
        self._sampler = sampler
        self._processor = processor
        self._device = context.like.device
        self._stopwatch = Stopwatch(self._device, context.clock)
        self._queue = GpuQueue(self._device, graphs=computer.replays)
        self._asked: ProcessGradient | None = None
        self._overslept_s = 0.0
        self.takes_layers = not computer.replays
        worker.learner.on_stepped = self._keep_pace_of_updates

    # ---- what an algorithm asks for ----

    def load(self, samples: int) -> ProcessBatch:
        start = self.clock.now()
        batch = Batch(self._sampler.draw(self._worker.rank, samples), samples)
        end = start if self._processor is None else self._processor.load(start, samples)[1]
        self._reporter.loaded(start, end, samples)
        return ProcessBatch(self, batch, end)

    def ask(self, samples: int, at: Parameters | None, batch: Batch | None, plus: Gradient | None) -> ProcessGradient:
        arriving = self._worker.take_arriving() if at is None and self.takes_layers else []
        # After that: it may have waited for parameters of another version, and a new generation may have ended it.
        versions = self._worker.progress.versions_at(at)
        self._asked = ProcessGradient(self, samples, at, batch, plus, versions, arriving=arriving)
        return self._asked

    def hand_over(self, asked: Pending[Gradient], group: Group) -> Pending[Gradient]:
        assert isinstance(asked, ProcessGradient)
        if asked is not self._asked:  # it has been computed before it was handed over
            self.keep_pace(asked.end_s)
            assert asked.gradient is not None
            return self._worker.all_reduce(asked.gradient, group)
        self._asked = None
        sums = self._worker.sums
        collectives = sums.of(group)
        if not self._overlaps(collectives):
            if self._comes_by_layer(asked):
                return self._worker.all_reduce(self._compute_by_layer(asked), group)
            buffer = collectives.buffer()
            gradient = self._compute(asked, collectives.values(buffer))
            self.keep_pace(asked.end_s)
            return sums.start(collectives, gradient, buffer)  # type: ignore[return-value]  # of a gradient, a gradient
        times = self._computer.layer_times
        collectives.follow([times.backward_done(bucket) for bucket in collectives.buckets])
        buffer = collectives.buffer()
        leaving = LeavingBuckets(collectives, buffer, len(self._worker.context.layout.layers))
        gradient = self._compute_by_layer(asked, leaving)
        self.keep_pace(asked.end_s)
        return sums.start(collectives, gradient, buffer, leaving.sender)  # type: ignore[return-value]

    def push(self, asked: Pending[Gradient], to: Address, notes: Notes) -> None:
        assert isinstance(asked, ProcessGradient)
        asked.pushes.append((to, notes))
        if asked is not self._asked:  # it has been computed before it was handed over
            self._send(asked)

    def _send(self, asked: ProcessGradient) -> None:
        """Send a gradient to those it was handed over for, when its time is over."""
        assert asked.gradient is not None
        pushes, asked.pushes = asked.pushes, []
        if pushes:
            self.keep_pace(asked.end_s)
        for to, notes in pushes:
            self._worker.send(to, asked.gradient.part(to.shard), **notes)

    def received(self, received: ProcessReceive) -> ProcessReceive:
        return received

    def take_data_range(self, start: float, stop: float) -> None:
        self._sampler.assign(self._worker.rank, start, stop)

    def buffers(self) -> Tensor | None:
        return self._computer.buffers()

    def finish_asked(self) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            if self.takes_layers and (self._comes_by_layer(asked) or asked.pushes):
                asked.gradient = self._compute_by_layer(asked)
                return
            asked.gradient = self._compute(asked, None)
            self._send(asked)

    def is_over(self, asked: ProcessGradient) -> bool:
        """Whether a gradient is computed, and its time is over."""
        self.finish_asked()
        return self.clock.now() >= asked.end_s

    def bring(self, asked: ProcessGradient) -> None:
        """Compute a gradient if that has not been done, and wait until its time is over."""
        self.finish_asked()
        self.keep_pace(asked.end_s)
        self._queue.catch_up()

    def keep_pace(self, until_s: float) -> None:
        """Wait until the prescribed time is over."""
        now = self.clock.now()
        if self._processor is not None and until_s > now:
            while until_s > now + TICK_S:  # a new generation may begin while a slow machine sleeps
                self.clock.sleep_until(now + TICK_S)
                self._worker.inbox.look(0.0)
                now = self.clock.now()
            self._overslept_s = self.clock.sleep_until(until_s)
            now = self.clock.now()
        if self._reporter.due(now):
            self._reporter.report()
            # Also where nothing is awaited for long, as between two rounds of local steps.
            self._worker.inbox.look(0.0)

    def _keep_pace_of_updates(self, begun_s: float) -> None:
        """Let an optimizer step that was begun then take as long as prescribed."""
        if self._processor is not None and self._processor.s_per_update:
            self.keep_pace(self._processor.update(begun_s))

    def _overlaps(self, collectives: GroupCollectives) -> bool:
        """Whether buckets leave during the backward pass: there are several."""
        return not collectives.alone and len(collectives.buckets) > 1 and not self._computer.replays

    def _comes_by_layer(self, asked: ProcessGradient) -> bool:
        """Whether the forward pass has layers to wait for."""
        is_unfinished = asked.at is None and self._worker.learner.unfinished is not None
        return bool(asked.arriving) or (is_unfinished and self.takes_layers)

    # ---- computing ----

    def _compute(self, asked: ProcessGradient, out: Tensor | None) -> Gradient:
        """Compute what was asked for, into `out` if that is given."""
        begun, indices = self._begin(asked)
        plus = None if asked.plus is None else asked.plus.total
        total, loss = self._computer.compute(indices, self._worker.learner.held.values, plus, out)
        return self._end(asked, begun, total, loss)

    def _compute_by_layer(self, asked: ProcessGradient, leaving: LeavingBuckets | None = None) -> Gradient:
        """Compute what was asked for as its parameters come, and send it, or sum it, as its layers are ready."""
        worker, plus = self._worker, asked.plus
        ready, indices = self._draw(asked)
        work_s = 0.0 if self._processor is None else self._processor.work_s(asked.samples)
        self._overslept_s, overslept = 0.0, self._overslept_s
        pace = LayerPace(self._processor, self._computer.layer_times, ready - overslept, work_s)
        forward = ForwardPass(worker, asked.arriving, pace, self.keep_pace, at=asked.at)
        # The vector into which parameters are put as they come.
        values = forward.values if asked.at is None else asked.at.values
        self._computer.bind(values, indices)
        total = torch.empty_like(forward.values) if leaving is None else leaving.values
        losses: list[Tensor] = []

        def turn(loss: Tensor) -> None:
            forward.finish()
            if forward.waits:
                asked.versions = worker.progress.versions
            losses.append(loss)

        def known() -> Gradient:
            return self._known(asked, total, losses[0], self.clock.now() - begun - forward.waited_s)

        pushes, asked.pushes = asked.pushes, []
        on_layer: Callable[[int], None]
        if leaving is None:
            on_layer = BackwardPass(worker, pushes, total, known, pace, self.keep_pace).layer_is_there
        else:
            on_layer = leaving.begin(lambda bucket: self.keep_pace(pace.ready(bucket)))
        # Hooks only where there is something to wait for: they take time of their own.
        need = forward.need if forward.waits or self._processor is not None else None
        self._stopwatch.start()
        begun = self.clock.now()
        loss = self._computer.compute_by_layer(
            indices, total, None if plus is None else plus.total, on_layer, need, turn
        )
        asked.end_s = pace.end_s
        return self._end(asked, begun, total, loss, forward.waited_s)

    def _draw(self, asked: ProcessGradient) -> tuple[float, Tensor]:
        """When samples are loaded, and which."""
        ready = start = self.clock.now()
        if asked.batch is None:
            indices = self._sampler.draw(self._worker.rank, asked.samples)
            if self._processor is not None and self._processor.io_s_per_sample:
                ready = self._processor.load(start, asked.samples)[1]
                self._reporter.loaded(start, ready, asked.samples)
        else:
            indices = asked.batch.indices
        return ready, indices

    def _begin(self, asked: ProcessGradient) -> tuple[float, Tensor]:
        ready, indices = self._draw(asked)
        if self._processor is not None:
            # What was overslept before is credited here, so that paces hold on average.
            self._overslept_s, overslept = 0.0, self._overslept_s
            ready, asked.end_s = self._processor.compute(ready - overslept, asked.samples)
        values = self._worker.learner.held.values if asked.at is None else asked.at.values
        self._computer.bind(values, indices)
        self._stopwatch.start()
        return ready, indices

    def _end(
        self, asked: ProcessGradient, begun: float, total: Tensor, loss: Tensor, waited_s: float = 0.0
    ) -> Gradient:
        # First of all: nothing below counts as computing.
        seconds = self._stopwatch.stop(asked.samples) - waited_s
        now = self.clock.now()
        if self._processor is not None and asked.end_s >= now:
            # A prescribed time counts only if it could be kept: a machine that is slower has to show it.
            seconds = asked.end_s - begun - waited_s
        if self._device.type == "cuda":  # by the GPU's clock: ours shows how long queueing took
            begun = now - seconds
        self._reporter.computed(begun, max(now, asked.end_s), asked.samples, asked.versions[0])
        self._look_at(total, loss, seconds, now)
        return self._known(asked, total, loss, seconds)

    def _known(self, asked: ProcessGradient, total: Tensor, loss: Tensor, seconds: float) -> Gradient:
        """What is known of a gradient."""
        # In double precision, which rounds nothing; on a GPU not looked at, so that nothing waits for it.
        known = float(loss) * asked.samples if loss.device.type == "cpu" else loss * asked.samples
        gradient = Gradient(total, asked.samples, asked.versions, known, seconds)
        gradient.sources = ((self._worker.rank, asked.samples),)
        # The total of what it is added to is in `total` already.
        return gradient if asked.plus is None else gradient.joined(asked.plus, total)

    def _look_at(self, total: Tensor, loss: Tensor, seconds: float, now: float) -> None:
        """Note the loss of what is known to be computed, and check that it is finite."""
        due = self._reporter.due(now)
        seen = self._queue.see(loss, seconds, look=due)
        if seen is not None:
            self._reporter.saw_loss(seen)
            if loss.device.type == "cpu" or not math.isfinite(seen):
                worker = self._worker
                name, samples = worker.address.name, worker.progress.samples
                check_finite(name, samples, seen, total, worker.context.layout, all_=due)
