"""Everything that decides a run, apart from the algorithm, and what a reference hands back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from ownpace.fleet import Fleet, Machine, Network, ServerMachine, Slowdown
from ownpace.tasks import Quadratic

# 101 samples: prime, so that batches straddle the end of an epoch.
TASK = Quadratic(dimensions=7, num_samples=101)
MESSAGE_BYTES = 4 * TASK.dimensions
# Added to whole paces, so that no two workers are ever ready at the same time by accident.
AWKWARD = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13)]


@dataclass(frozen=True)
class Slow:
    """One machine is `factor` times slower during from_s ≤ t < until_s."""

    rank: int
    from_s: float
    until_s: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides a run, apart from the algorithm."""

    paces: tuple[float, ...]
    batch_size: int = 4
    micro_batch: int | None = None
    samples: int = 200
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    cosine: bool = False
    """Whether the learning rate falls along half a cosine; else it stays."""
    bandwidth: float = 10_000.0
    server_bandwidth: float | None = None
    latency: float = 1e-3
    seed: int = 0
    slow: Slow | None = None

    @property
    def num_workers(self) -> int:
        return len(self.paces)

    @property
    def micro(self) -> int:
        """Samples of one computation."""
        return self.micro_batch or self.batch_size

    @property
    def fleet(self) -> Fleet:
        """The same in the package's terms."""
        machines = []
        for rank, pace in enumerate(self.paces):
            spans = () if self.slow is None or self.slow.rank != rank else (self.slow,)
            slowdowns = tuple(Slowdown(from_s=span.from_s, until_s=span.until_s, factor=span.factor) for span in spans)
            machines.append(Machine(samples_per_s=pace, slowdown=slowdowns))
        return Fleet(
            machine=tuple(machines),
            network=Network(bandwidth_bytes_per_s=self.bandwidth, latency_s=self.latency),
            server=(ServerMachine(bandwidth_bytes_per_s=self.server_bandwidth),),
        )

    @property
    def ring_seconds(self) -> float:
        """How long a ring all-reduce of one gradient takes among all workers."""
        hops = 2 * (self.num_workers - 1)
        return hops / self.num_workers * MESSAGE_BYTES / self.bandwidth + hops * self.latency

    def with_ring(self, seconds: float) -> Setting:
        """The same on a network where an all-reduce takes that long."""
        hops = 2 * (self.num_workers - 1)
        return replace(self, bandwidth=hops / self.num_workers * MESSAGE_BYTES / seconds, latency=0.0)

    def when_computed(self, rank: int, start: float, samples: int) -> float:
        """When a worker that begins `samples` samples at `start` is done with them."""
        left = samples / self.paces[rank]  # seconds of undisturbed work
        slow = self.slow
        if slow is None or slow.rank != rank or start >= slow.until_s:
            return start + left
        before = max(0.0, slow.from_s - start)
        if left <= before:
            return start + left
        start, left = start + before, left - before
        during = (slow.until_s - start) / slow.factor
        if left <= during:
            return start + left * slow.factor
        return slow.until_s + left - during


@dataclass(frozen=True)
class Step:
    """One update of the global parameters."""

    t: float
    samples: int
    staleness: int
    loss: float
    """Of the parameters that it made."""


@dataclass
class Result:
    """What a reference hands back."""

    weights: Tensor
    steps: list[Step] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    """Of each round, where a reference has rounds: every worker's batch, by rank."""
