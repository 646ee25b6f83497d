"""What all nodes of a run share: the clock, the network's latency, the model and the data they learn with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Gradient, Shard
from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.claims import Places
from ownpace.core.learning.layer_work import LayerBucket, sum_buckets
from ownpace.core.learning.sampling import Sampler, make_sampler
from ownpace.engines.job import Job
from ownpace.engines.layer_times import LayerTimes
from ownpace.engines.learning import RealLearning
from ownpace.engines.progress import Progress
from ownpace.engines.roster import Roster
from ownpace.engines.virtual.accounts import SampleAccounts
from ownpace.engines.virtual.clock import Clock
from ownpace.engines.virtual.replica import Learning, Replica, TimingOnly
from ownpace.engines.virtual.transport import uplinks

# One for all batches, where only time is simulated.
_NO_INDICES = torch.empty(0, dtype=torch.int64)


class Updated(Protocol):
    """A node that has just made an update."""

    address: Address
    progress: Progress

    @property
    def committed(self) -> Replica:
        """The global parameters as of its latest update."""


OnUpdate = Callable[[Updated, int, int], None]
"""Called with every update: the node that made it, the samples of the gradient, and its staleness."""


class Simulation:
    """The surroundings of a node. Nodes know this and each other's addresses, and nothing of the run around them."""

    roster: Roster
    """Set once there are nodes, whose addresses it lists."""
    on_update: OnUpdate
    """Set once there is something that follows the run."""
    on_merge: Callable[[Tensor, Tensor], None]
    """Called when the first worker takes over a mean of all workers' parameters: with its own, and the mean."""
    accounts: SampleAccounts
    """Whose samples are used up, since this generation began."""
    sampler: Sampler | None
    """Of this generation; None where only time is simulated."""

    def __init__(self, job: Job, emit: events.Emit) -> None:
        self.job = job
        self.emit = emit
        self.detail = job.detail
        self.real = not job.timing_only
        """Whether there are gradients, or only times."""
        self.accounted = self.real or bool(job.fleet.fault)
        """Whether it is known whose samples are in the parameters: of times alone, only where machines may die."""
        self.clock = Clock()
        self.budget: float = job.samples or math.inf
        """Samples after which this generation is over."""
        self.numbers = {worker.name: number for number, worker in enumerate(job.fleet.workers)}
        """Each worker's place in the fleet, which its random numbers are derived from."""
        self.latency_s = job.fleet.network.latency_s
        self.uplinks = uplinks(job.fleet)
        """Of sites, by their names; none where nothing is between them."""
        self.deadline_s = math.inf if job.seconds is None else job.seconds
        """When nodes are told to stop: at the limit of time, when the budget of samples was spent, or when the next
        generation is wanted."""
        device = torch.device(job.device)
        self.learning: Learning = (
            TimingOnly(job.task)
            if job.timing_only
            else RealLearning(job.task, device, job.autocast, seed=job.seed, graphs=job.cuda_graphs)
        )
        self.parameter_bytes = self.learning.initial.nbytes
        """Of all parameters, and so of a gradient."""
        self.steps_by_layer = job.optimizer.clip_norm is None and job.optimizer.custom is None
        """Whether a step can be made layer by layer; clipping needs all of a gradient, and so may an optimizer."""
        self._said: tuple[Gradient, Gradient] | None = None
        self.optimizer = cache(partial(self.learning.optimizer, job.optimizer))
        """The optimizer of a shard, made once for all nodes that hold it."""

    @cached_property
    def whole(self) -> Shard:
        """All parameters, one object for all workers: what is looked up by it is found by identity."""
        return Shard(0, 0, self.learning.layout.size)

    @cached_property
    def layer_times(self) -> LayerTimes:
        """When layers are needed and ready, where they travel on their own."""
        return LayerTimes(self.job.task, self.learning.layout)

    @cached_property
    def sum_buckets(self) -> Sequence[LayerBucket]:
        """In which a gradient is summed while it is computed, the last layers' first."""
        return sum_buckets(self.learning.layout, self.learning.initial.element_size())

    def said(self, total: Gradient) -> Gradient:
        """What goes with a sum, made once for all members."""
        if self._said is None or self._said[0] is not total:
            self._said = total, total.without_numbers()
        return self._said[1]

    def begin_data(self, numbers: Sequence[int], versions: Sequence[int], samples: int, left: Sequence[Places]) -> None:
        """Deal these places to the workers with these numbers of the fleet, from these versions and samples on."""
        job = self.job
        self.accounts = SampleAccounts(len(numbers), versions, samples)
        if job.timing_only:
            self.sampler = None
        else:
            train = TrainingSamples(job.task.train_samples(), job.seed)
            self.sampler = make_sampler(
                job.sampling, len(train), len(numbers), job.seed, numbers=numbers, left=left, visits=train.visits
            )

    def draw(self, rank: int, samples: int) -> Tensor:
        """The indices of the next samples for a worker."""
        return _NO_INDICES if self.sampler is None else self.sampler.draw(rank, samples)


__all__ = ["OnUpdate", "Simulation", "Updated"]
