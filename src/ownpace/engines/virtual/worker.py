"""A worker in virtual time: a node with a machine, data and parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import NO_NOTES, Batch, Gradient, Message, Parameters
from ownpace.engines.ledger import diverged
from ownpace.engines.processor import Processor
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.awaitables import CollectivePart, VirtualBatch, VirtualGradient, VirtualReceive
from ownpace.engines.virtual.by_layer import Arriving, ArrivingGradient
from ownpace.engines.virtual.collectives import Collectives
from ownpace.engines.virtual.learner import LEARNER_SLOTS, VirtualLearner
from ownpace.engines.virtual.nodes import VirtualAddress, VirtualNode
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.unjoined import Unjoined


class VirtualWorker(VirtualLearner, VirtualNode):
    """A worker: it computes at its machine's pace."""

    __slots__ = (
        *LEARNER_SLOTS,
        "batch_size",
        "buffers",
        "compute_s",
        "computed_samples",
        "kept",
        "load_s",
        "micro_batch",
        "processor",
        "rank",
    )

    def __init__(
        self, surroundings: tuple[Simulation, Collectives], rank: int, number: int, replica: Replica, num_shards: int
    ) -> None:
        simulation = surroundings[0]
        job = simulation.job
        machine = job.fleet.workers[number]
        progress = Progress(simulation.budget, num_shards)
        bandwidth = job.fleet.network.bandwidth_bytes_per_s
        address = VirtualAddress("worker", rank, machine.name, simulation.whole, machine.machine.site)
        super().__init__(surroundings, address, bandwidth, progress)
        self.begin_at(replica)
        self.batch_size = job.batch_size
        self.micro_batch = job.algorithm.micro_batch(job.batch_size, job.micro_batch, len(simulation.numbers))
        self.buffers = simulation.learning.new_buffers()
        self.computed_samples = 0
        self.kept: dict[str, Tensor] = {}
        self.compute_s = 0.0
        self.load_s = 0.0
        self.rank = rank
        self.processor = Processor(machine, number, job.seed)

    def load(self, samples: int | None = None) -> VirtualBatch:
        samples = self.micro_batch if samples is None else samples
        end = self._load(samples)
        loaded = VirtualBatch(Batch(self.simulation.draw(self.rank, samples), samples))
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
        simulation = self.simulation
        if batch is not None:
            samples, ready = batch.samples, self._clock.time
        else:
            if samples is None:
                samples = self.micro_batch
            # Most fleets load in no time: asking first saves a call for every gradient.
            ready = self._load(samples) if self.processor.io_s_per_sample else self._clock.time
        if at is None and (self.arriving is not None or self.layers_due):
            indices = simulation.draw(self.rank, samples) if batch is None else batch.indices
            return self._wait_for_layers(ArrivingGradient(self, samples, ready, indices, plus))
        start, end = self.processor.compute(ready, samples)
        versions = self.progress.versions if at is None else self.progress.versions_at(at)
        # A tensor without contents, where nothing but time is simulated: its size matters, for what it costs to send.
        computed = VirtualGradient(simulation.learning.initial, samples, versions, math.nan, end - start, NO_NOTES)
        computed.parts = None
        computed.nbytes = simulation.parameter_bytes
        if simulation.real:
            # Drawn and computed when it is asked for, though it is done later: parameters may have moved on by then.
            indices = simulation.draw(self.rank, samples) if batch is None else batch.indices
            contents, computed.loss = self.contents(indices, self._values if at is None else at.values)
            computed.hold(contents)
        computed.computed = samples
        if simulation.accounted:
            computed.sources = ((self.rank, samples),)
        if plus is not None:
            computed.add(plus)
        computed.start = start
        computed.end = end
        computed.then = None
        computed.done = False
        computed.driver = None
        computed.worker = self
        self._clock.at(end, computed)
        return computed

    def _wait_for_layers(self, gradient: ArrivingGradient) -> ArrivingGradient:
        """Let a gradient begin when it is known when its parameters arrive."""
        if self.arriving is not None:
            self.arriving.wait(gradient)
        else:
            due, self.layers_due = self.layers_due, ()
            gradient.begin_with(due)
        return gradient

    async def step_by_layer(
        self, total: Pending[Gradient], *, lr_scale: float = 1.0, advance: float | None = None
    ) -> Gradient:
        gradient = await self.sum_by_layer(total)
        self.step(gradient, lr_scale=lr_scale, advance=advance)
        self.expect_layers(total)
        return self.simulation.said(gradient)

    def sum_by_layer(self, total: Pending[Gradient]) -> Pending[Gradient]:
        """The same sum, which is over as soon as its lowest layers have come."""
        if isinstance(total, CollectivePart):
            total.by_layer = self.simulation.steps_by_layer
        return total

    def expect_layers(self, total: Pending[Gradient]) -> None:
        """Layers of the update that was just made with this sum are still to come: the next gradient waits for them."""
        if isinstance(total, CollectivePart):
            self.layers_due = total.arrivals

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        super().local_step(gradient, lr_scale=lr_scale)
        self._take_time(gradient)

    def _made_update(self, gradient: Gradient, advance: float | None) -> None:
        super()._made_update(gradient, advance)
        if self.processor.s_per_update:
            self._take_time(gradient)

    def _take_time(self, gradient: Gradient) -> None:
        """Be busy with an optimizer step: what is computed or sent next begins after it."""
        if self.processor.s_per_update and gradient.samples:
            end = self.processor.update(self._clock.time)
            self.out_free_s = max(self.out_free_s, end)

    def contents(self, indices: Tensor, values: Tensor | None = None) -> tuple[Tensor | Unjoined, float]:
        """The sum of these samples' gradients, at these parameters or at my own, and of their losses."""
        simulation = self.simulation
        if not simulation.real:
            return simulation.learning.initial, math.nan
        parts, loss = simulation.learning.gradient(self._values if values is None else values, self.buffers, indices)
        if not math.isfinite(loss):
            raise diverged(f"the loss on {self.address.name}", loss, self.progress.samples)
        return Unjoined(simulation.learning.layout, parts), loss

    def place(self, parameters: Parameters | Pending[Message]) -> None:
        if not isinstance(parameters, Parameters):
            self._expect(parameters)
            return
        if len(self.progress.versions) == 1:
            self._values = parameters.values
        else:
            shard = parameters.shard
            self._values = self._values.clone()  # snapshots of it may have been handed out
            self._values[shard.start : shard.stop] = parameters.values
        self.progress.placed(parameters)
        self._replica = None
        self._snapshot = None

    def _expect(self, parameters: Pending[Message]) -> None:
        """Put parameters in their places when they come; the next gradient waits for them."""
        assert isinstance(parameters, VirtualReceive), "what was asked for here"
        if self.arriving is None or self.arriving.is_taken:
            self.arriving = Arriving(self, self.arriving)
        self.arriving.expect(parameters)

    def no_gradient(self) -> Gradient:
        # −0.0: added to it, a layer without a gradient stays one.
        nothing = torch.full_like(self.simulation.learning.initial, -0.0)
        return Gradient(nothing, 0, self.progress.versions, 0.0)

    def take_data_range(self, start: float, stop: float) -> None:
        if self.simulation.sampler is not None:
            self.simulation.sampler.assign(self.rank, start, stop)

    def tally(self, begun_s: float) -> events.Tally:
        """What this worker has done, with the time that its gradient under way has taken so far."""
        return events.Tally(self.computed_samples, self.compute_s + begun_s, self.load_s)

    def _load(self, samples: int) -> float:
        start, end = self.processor.load(self._clock.time, samples)
        self.load_s += end - start
        if self.simulation.detail and end > start:
            self.simulation.emit(events.Load(start, end, self.address.name, samples))
        return end


__all__ = ["VirtualWorker"]
