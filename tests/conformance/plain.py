"""What the plain statements of the algorithms share: hand-written SGD, who draws which samples, and a spy.

As in `test_reference.py`, nothing here comes from `ownpace.algorithms` or from an engine: only the task's data and the
order in which samples are handed out are the package's own. All arithmetic is in float64.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Evaluation, Event, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.schedule import Schedule
from ownpace.engines import Outcome
from ownpace.fleet import Fleet, Machine, Network
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

# 101 samples: prime, so that batches straddle the end of an epoch.
TASK = Quadratic(dimensions=7, num_samples=101)
MESSAGE_BYTES = 4 * TASK.dimensions
# Added to whole paces, so that no two workers are ever ready at the same time by accident.
AWKWARD = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11)]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides a run, apart from the algorithm."""

    paces: tuple[float, ...]
    batch_size: int = 4
    micro_batch: int | None = None
    samples: int = 200
    lr: float = 0.03
    momentum: float = 0.0
    weight_decay: float = 0.0
    cosine: bool = False
    """Whether the learning rate falls along half a cosine, else it stays."""
    bandwidth: float = 10_000.0
    latency: float = 1e-3
    seed: int = 0

    @property
    def num_workers(self) -> int:
        return len(self.paces)

    @property
    def micro(self) -> int:
        """Samples of one computation."""
        return self.micro_batch or self.batch_size

    @property
    def ring_seconds(self) -> float:
        """How long a ring all-reduce of one gradient takes."""
        hops = 2 * (self.num_workers - 1)
        return hops / self.num_workers * MESSAGE_BYTES / self.bandwidth + hops * self.latency

    def with_ring(self, seconds: float) -> Setting:
        """The same on a network where an all-reduce takes that long."""
        hops = 2 * (self.num_workers - 1)
        return replace(self, bandwidth=hops / self.num_workers * MESSAGE_BYTES / seconds, latency=0.0)


@dataclass(frozen=True)
class Step:
    """One update of the global parameters."""

    t: float
    samples: int
    staleness: int


@dataclass
class Result:
    """What a reference hands back."""

    weights: Tensor
    steps: list[Step] = field(default_factory=list)


# The mathematics ---------------------------------------------------------------------------------------------------


class Model:
    """The global parameters and SGD with momentum and weight decay, in torch's convention."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.weights = torch.ones(TASK.dimensions, dtype=torch.float64)
        self.buffer: Tensor | None = None
        self.samples = 0
        """Of all updates so far; what the schedule is indexed by."""

    @property
    def lr(self) -> float:
        done = min(1.0, self.samples / self.setting.samples)
        return self.setting.lr * (0.5 * (1 + math.cos(math.pi * done)) if self.setting.cosine else 1.0)

    def peek(self, gradient: Tensor, scale: float = 1.0) -> Tensor:
        """Where a step along a mean gradient would lead."""
        return self.weights - scale * self.lr * self._direction(gradient)

    def step(self, gradient: Tensor, samples: int, scale: float = 1.0) -> None:
        """One step along the mean gradient of so many samples."""
        following = self.peek(gradient, scale)
        self.buffer = self._direction(gradient)
        self.weights = following
        self.samples += samples

    def _direction(self, gradient: Tensor) -> Tensor:
        gradient = gradient + self.setting.weight_decay * self.weights
        return gradient if self.buffer is None else self.setting.momentum * self.buffer + gradient


class Draws:
    """Consecutive chunks of the one shared order of samples."""

    def __init__(self, seed: int) -> None:
        self._inputs = TASK.train_samples().inputs.double()
        self._order = Permutations(len(self._inputs), seed, 0)
        self._taken = 0

    def take(self, count: int) -> Tensor:
        chosen = self._order.indices(self._taken, count)
        self._taken += count
        return self._inputs[chosen]


def gradient_sum(weights: Tensor, inputs: Tensor) -> Tensor:
    """Σ over the samples of a·(w − x)."""
    total = torch.zeros_like(weights)
    for sample in inputs:
        total += TASK.curvatures.double() * (weights - sample)
    return total


def loss(weights: Tensor) -> float:
    """The mean of ½·Σ a(w − x)² over all samples."""
    distances = weights - TASK.test_samples().inputs.double()
    return float((0.5 * TASK.curvatures.double() * distances.square()).sum(1).mean())


# What is compared --------------------------------------------------------------------------------------------------


def fleet_of(setting: Setting) -> Fleet:
    machines = tuple(Machine(samples_per_s=pace) for pace in setting.paces)
    return Fleet(machine=machines, network=Network(bandwidth_bytes_per_s=setting.bandwidth, latency_s=setting.latency))


def engine(setting: Setting, algorithm: str | Algorithm, **parameters: object) -> tuple[Outcome, list[Event]]:
    """Run an algorithm, by name and parameters or as it is, in virtual time."""
    return simulate(
        make_algorithm(algorithm, parameters) if isinstance(algorithm, str) else algorithm,
        fleet_of(setting),
        task=TASK,
        samples=setting.samples,
        batch_size=setting.batch_size,
        micro_batch=setting.micro_batch,
        seed=setting.seed,
        optimizer=OptimizerSpec(
            lr=setting.lr,
            momentum=setting.momentum,
            weight_decay=setting.weight_decay,
            schedule=Schedule(shape="cosine" if setting.cosine else "constant"),
        ),
    )


def updates(events: list[Event]) -> list[Update]:
    return [event for event in events if isinstance(event, Update)]


def assert_same(outcome: Outcome, events: list[Event], expected: Result) -> None:
    """The engine made the same updates, at the same times, and ended at the same parameters."""
    assert (outcome.reason, outcome.error) == ("finished", None)
    made = updates(events)
    assert [update.samples for update in made] == [step.samples for step in expected.steps]
    assert [update.staleness for update in made] == [step.staleness for step in expected.steps]
    assert [update.t for update in made] == pytest.approx([step.t for step in expected.steps], rel=1e-9)
    assert [update.version for update in made] == list(range(1, len(made) + 1))
    totals = list(itertools.accumulate(step.samples for step in expected.steps))
    assert [update.total_samples for update in made] == totals
    torch.testing.assert_close(outcome.model["at"].double(), expected.weights, rtol=1e-4, atol=1e-5)
    last = [event.loss for event in events if isinstance(event, Evaluation)][-1]
    assert last == pytest.approx(loss(expected.weights), rel=1e-4)


# A spy -------------------------------------------------------------------------------------------------------------


@dataclass
class Sum:
    """One worker's part in an all-reduce, and where it was computed."""

    gradient: object
    versions: list[int]
    """Of the parameters at which each of its micro-batches was computed."""
    points: list[Tensor]
    """And those parameters, or the point in their place."""


@dataclass
class Committed:
    """One update, as one worker made it."""

    gradient: object
    lr: float
    """The schedule's, before the update."""
    lr_scale: float
    advance: float | None
    before: Tensor
    after: Tensor


@dataclass
class Record:
    """What one worker asked for, in order."""

    sums: list[Sum] = field(default_factory=list)
    steps: list[Committed] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)
    """Where each gradient was computed."""
    held: list[Tensor] = field(default_factory=list)
    """Its parameters at that time."""


class Spied:
    """A worker that does as the one it stands before, and keeps a record."""

    def __init__(self, me: object, record: Record) -> None:
        self._me = me
        self._record = record
        self._open = Sum(None, [], [])

    def __getattr__(self, name: str) -> object:
        return getattr(self._me, name)

    def gradient(self, samples=None, *, at=None, batch=None, plus=None):
        point = self._me.parameters if at is None else at
        self._open.versions.append(point.version)
        self._open.points.append(point.values)
        self._record.points.append(point.values)
        self._record.held.append(self._me.parameters.values)
        return self._me.gradient(samples, at=at, batch=batch, plus=plus)

    def all_reduce(self, body, group=None):
        self._open.gradient = body
        self._record.sums.append(self._open)
        self._open = Sum(None, [], [])
        return self._me.all_reduce(body, group)

    def step(self, gradient, *, lr_scale=1.0, advance=None, memory=0):
        lr, before = self._me.lr, self._me.parameters.values
        self._me.step(gradient, lr_scale=lr_scale, advance=advance, memory=memory)
        self._record.steps.append(
            Committed(gradient, lr, lr_scale, advance, before, self._me.parameters.values),
        )


def spied(name: str, **parameters: object) -> tuple[Algorithm, dict[int, Record]]:
    """An algorithm, and what will be on record of each worker, by rank."""
    algorithm = make_algorithm(name, parameters)
    records: dict[int, Record] = {}

    class Watched(type(algorithm)):
        async def worker(self, me):
            records[me.rank] = Record()
            await super().worker(Spied(me, records[me.rank]))

    return Watched(**vars(algorithm)), records
