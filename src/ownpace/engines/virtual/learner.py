"""What workers and servers share in virtual time: parameters, and the optimizer state that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ownpace.core.contract.values import Address, Gradient, Parameters
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.awaitables import Arrival
from ownpace.engines.virtual.by_layer import Arriving
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation

LEARNER_SLOTS = ("_before", "_replica", "_snapshot", "_values", "arriving", "layers_due")
"""What a node that learns adds to its slots."""
_NONE_HERE: tuple[str, ...] = ()


class VirtualLearner:
    """The learning half of a node; the other half, messages and collectives, is VirtualNode.

    Its state is in the node's own slots, which its subclasses list: with ten thousand workers, every further object per
    worker costs time.
    """

    __slots__ = _NONE_HERE
    address: Address
    simulation: Simulation
    progress: Progress
    _values: Tensor
    _replica: Replica | None
    """None: the values were placed here, and no optimizer state belongs to them yet."""
    _snapshot: Parameters | None
    _before: Replica | None
    """The global parameters, while local steps have led away from them."""
    arriving: Arriving | None
    """Parameters that are still to come, if there are any."""
    layers_due: Sequence[Arrival]
    """When the layers of the latest update arrive, if that was made before all of them had."""

    def begin_at(self, replica: Replica) -> None:
        """Begin with these parameters."""
        self._values = replica.values
        self._replica = replica
        self._snapshot = None
        self._before = None
        self.arriving = None
        self.layers_due = ()

    @property
    def committed(self) -> Replica:
        """The global parameters and their optimizer state, as of this learner's latest update."""
        if self._replica is None:
            self._replica = Replica(self._values)
        return self._before or self._replica

    def _check_there(self) -> None:
        """Raise if the parameters cannot be told yet."""
        if self.arriving is not None:
            self.arriving.check()
        if self.layers_due and max(time for _, time in self.layers_due) > self.simulation.clock.time:
            raise RuntimeError("layers of an update made by step_by_layer have not come yet; await a gradient first")

    @property
    def parameters(self) -> Parameters:
        if self.arriving is not None or self.layers_due:
            self._check_there()
        # Kept until the next change: a server hands the same parameters to several workers.
        if self._snapshot is None:
            self._snapshot = Parameters(self._values, self.progress.version, self.address.shard)
        return self._snapshot

    @property
    def updates(self) -> int:
        return self.progress.version

    @property
    def run_samples(self) -> int | None:
        return self.simulation.job.samples

    @property
    def lr(self) -> float:
        simulation = self.simulation
        rate = simulation.optimizer(self.address.shard).lr if simulation.real else simulation.job.optimizer.lr
        return rate * self._lr_factor(1.0)

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        if not gradient.samples:
            return
        if self.simulation.real:
            self._move(gradient, lr_scale, memory)
        self._made_update(gradient, advance)

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        if self.arriving is not None or self.layers_due:
            self._check_there()
        simulation, values = self.simulation, self._values
        if simulation.real and gradient.samples:
            replica = self._replica or Replica(values)
            values = replica.peek(simulation.optimizer(self.address.shard), gradient, self._lr_factor(lr_scale))
        return Parameters(values, self.progress.version, self.address.shard)

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        if gradient.samples and self.simulation.real:
            if self._before is None:
                self._replica = self._replica or Replica(self._values)
                self._before = self._replica.kept()
            self._move(gradient, lr_scale, 0)
            self._snapshot = None

    def commit(self, values: Tensor, work: Gradient, *, ahead: Tensor | None = None) -> None:
        if not work.samples:
            if ahead is None and self._before is not None:
                self._values, self._replica = self._before.values, self._before
                self._before = self._snapshot = None
            return
        if self.arriving is not None or self.layers_due:
            self._check_there()
        if self.simulation.real:
            if not self.address.index:
                self.simulation.on_merge(self._values, values)
            # Other values, the same state: momentum survives an average.
            self._replica = (self._replica or Replica(self._values)).at(values)
            self._values = values
        self._made_update(work, None)
        # Only now: who evaluates this update is to see the global parameters.
        if self.simulation.real and ahead is not None:
            assert self._replica is not None
            self._before = self._replica.kept()
            self._replica = self._replica.at(ahead)
            self._values = ahead
            self._snapshot = None

    def _lr_factor(self, scale: float) -> float:
        return self.simulation.job.lr_factor(self.progress.scheduled) * scale

    def _move(self, gradient: Gradient, lr_scale: float, memory: int) -> None:
        if self.arriving is not None or self.layers_due:
            self._check_there()
        replica = self._replica or Replica(self._values)
        optimizer = self.simulation.optimizer(self.address.shard)
        self._replica = replica.step(optimizer, gradient, self._lr_factor(lr_scale), memory)
        self._values = self._replica.values

    def _made_update(self, gradient: Gradient, advance: float | None) -> None:
        # Values first, then the count, then the news: an evaluation that follows at once must see all of the update.
        self._snapshot = None
        self._before = None
        progress, simulation = self.progress, self.simulation
        staleness = progress.made_update(gradient, advance)
        if simulation.accounted:
            simulation.accounts.made_update(self.address.shard.index, progress.version, gradient)
        simulation.on_update(self, gradient.samples, staleness)


__all__ = ["LEARNER_SLOTS", "VirtualLearner"]
