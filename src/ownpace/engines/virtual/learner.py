"""What a node learns with: its parameters, the optimizer state that belongs to them, and how far it is."""

from __future__ import annotations

from torch import Tensor

from ownpace.core.contract.values import Address, Gradient, Parameters
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation


class VirtualLearner:
    """The parameters of a worker (all of them) or a server (its shard)."""

    __slots__ = ("_replica", "_simulation", "_snapshot", "node", "progress", "values")

    def __init__(self, simulation: Simulation, node: Address, progress: Progress, replica: Replica) -> None:
        self._simulation = simulation
        self.node = node
        self.progress = progress
        self.values = replica.values
        self._replica: Replica | None = replica  # None: the values were placed here; no state belongs to them yet
        self._snapshot: Parameters | None = None

    @property
    def parameters(self) -> Parameters:
        """As they are now."""
        if self._snapshot is None:
            self._snapshot = Parameters(self.values, self.progress.version, self.node.shard)
        return self._snapshot

    @property
    def lr(self) -> float:
        """As the schedule has it now."""
        simulation = self._simulation
        rate = simulation.optimizer(self.node.shard).rates[0] if simulation.real else simulation.job.optimizer.lr
        return rate * self._lr_factor(1.0)

    def step(self, gradient: Gradient, lr_scale: float, advance: float | None, memory: int) -> None:
        """Make an update."""
        if not gradient.samples:
            return
        if self._simulation.real:
            self._move(gradient, lr_scale, memory)
        self._made_update(gradient, advance)

    def local_step(self, gradient: Gradient, lr_scale: float) -> None:
        """Move these parameters, which is no update of the global ones."""
        if gradient.samples and self._simulation.real:
            self._move(gradient, lr_scale, 0)
            self._snapshot = None

    def commit(self, values: Tensor, work: Gradient) -> None:
        """Make an update to these values; the optimizer's state stays."""
        if not work.samples:
            return
        if self._simulation.real:
            self._replica = (self._replica or Replica(self.values)).at(values)
            self.values = values
        self._made_update(work, None)

    def peek(self, gradient: Gradient, lr_scale: float) -> Parameters:
        """What a step would make of the parameters."""
        simulation, values = self._simulation, self.values
        if simulation.real and gradient.samples:
            replica = self._replica or Replica(values)
            values = replica.peek(simulation.optimizer(self.node.shard), gradient, self._lr_factor(lr_scale))
        return Parameters(values, self.progress.version, self.node.shard)

    def place(self, parameters: Parameters) -> None:
        """Overwrite the parameters of a shard."""
        progress = self.progress
        if len(progress.versions) == 1:
            self.values = parameters.values
        else:
            shard = parameters.shard
            self.values = self.values.clone()  # snapshots of it may have been handed out
            self.values[shard.start : shard.stop] = parameters.values
        progress.placed(parameters)
        self._replica = None
        self._snapshot = None

    def _lr_factor(self, scale: float) -> float:
        return self._simulation.job.lr_factor(self.progress.scheduled) * scale

    def _move(self, gradient: Gradient, lr_scale: float, memory: int) -> None:
        replica = self._replica or Replica(self.values)
        optimizer = self._simulation.optimizer(self.node.shard)
        self._replica = replica.step(optimizer, gradient, self._lr_factor(lr_scale), memory)
        self.values = self._replica.values

    def _made_update(self, gradient: Gradient, advance: float | None) -> None:
        # Values first, then the count, then the news: an evaluation that follows at once must see all of the update.
        self._snapshot = None
        staleness = self.progress.made_update(gradient, advance)
        self._simulation.on_update(self, gradient.samples, staleness)


__all__ = ["VirtualLearner"]
