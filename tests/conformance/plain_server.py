"""What plain restatements of algorithms share: the data, SGD, links, and an event loop around one server.

Nothing here comes from `ownpace.algorithms` or from an engine. Shared with the package are the task's data and the
order in which samples are handed out; the rest is stated once more, in float64 and as slowly as it reads.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.events import Evaluation, Event, Update
from ownpace.core.learning.sampling import Permutations, make_sampler
from ownpace.engines import Outcome
from ownpace.fleet import Fleet, Machine, Network, ServerMachine
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

# 101 samples: prime, so that batches straddle the end of an epoch.
TASK = Quadratic(dimensions=7, num_samples=101)
MESSAGE_BYTES = 4 * TASK.dimensions
INPUTS = TASK.train_samples().inputs.double()
CURVATURES = TASK.curvatures.double()


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
    bandwidth: float = 10_000.0
    server_bandwidth: float | None = None
    latency: float = 1e-3
    seed: int = 0

    @property
    def num_workers(self) -> int:
        return len(self.paces)

    @property
    def fleet(self) -> Fleet:
        return Fleet(
            machine=tuple(Machine(samples_per_s=pace) for pace in self.paces),
            network=Network(bandwidth_bytes_per_s=self.bandwidth, latency_s=self.latency),
            server=(ServerMachine(bandwidth_bytes_per_s=self.server_bandwidth),),
        )


@dataclass(frozen=True)
class Step:
    """One update of the global parameters."""

    t: float
    samples: int
    staleness: int
    loss: float
    """Of the parameters that it made."""


@dataclass(frozen=True)
class Result:
    """What a reference hands back."""

    weights: Tensor
    steps: list[Step]


class Sgd:
    """SGD with momentum and weight decay, in torch's convention."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.buffer: Tensor | None = None

    def moved(self, weights: Tensor, gradient: Tensor, lr_scale: float = 1.0) -> Tensor:
        """The parameters after one step along a mean gradient."""
        gradient = gradient + self.setting.weight_decay * weights
        self.buffer = gradient if self.buffer is None else self.setting.momentum * self.buffer + gradient
        return weights - self.setting.lr * lr_scale * self.buffer


def start() -> Tensor:
    """The parameters at which every run begins."""
    return torch.ones(TASK.dimensions, dtype=torch.float64)


def gradient_sum(weights: Tensor, inputs: Tensor) -> Tensor:
    """Σ over the samples of a·(w − x)."""
    total = torch.zeros_like(weights)
    for sample in inputs:
        total += CURVATURES * (weights - sample)
    return total


def loss(weights: Tensor) -> float:
    """The mean of ½·Σ a(w − x)² over all samples."""
    return float((0.5 * CURVATURES * (weights - INPUTS).square()).sum(1).mean())


class SharedQueue:
    """Consecutive chunks of the one shared order of samples."""

    def __init__(self, seed: int) -> None:
        self._order = Permutations(len(INPUTS), seed, 0)
        self._taken = 0

    def take(self, count: int) -> Tensor:
        chosen = self._order.indices(self._taken, count)
        self._taken += count
        return INPUTS[chosen]


class OwnData:
    """Every worker's own share of the samples: what it gets next does not depend on the others' timing."""

    def __init__(self, setting: Setting) -> None:
        self._sampler = make_sampler("shards", len(INPUTS), setting.num_workers, setting.seed)

    def take(self, rank: int, count: int) -> Tensor:
        return INPUTS[self._sampler.draw(rank, count)]


def ring_seconds(setting: Setting, members: int, nbytes: int = MESSAGE_BYTES) -> float:
    """How long a ring all-reduce takes."""
    hops = 2 * (members - 1)
    return hops / members * nbytes / setting.bandwidth + hops * setting.latency


# One server, and an event loop of its own --------------------------------------------------------------------------


@dataclass
class Link:
    """One direction of a machine's link: what comes first goes first."""

    bandwidth: float
    free_at: float = 0.0

    def occupy(self, start: float, nbytes: int) -> float:
        """Send or receive one message from `start` on; returns when its last byte is through."""
        self.free_at = max(start, self.free_at) + nbytes / self.bandwidth
        return self.free_at


class ServerLoop:
    """A run with one server, as a loop over a heap of (time, number, what happened, rank).

    Workers compute a batch at the parameters they hold, push its gradient and wait for an answer. A subclass says
    in `arrived` what the server does about a push; `update` and `answer` are its means.
    """

    farewell_bytes = 0
    """What a worker that ends sends to say so: it delays the pushes behind it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.weights = start()
        self.steps: list[Step] = []
        self.samples_done = 0
        self.queue = SharedQueue(setting.seed)
        self.optimizers: dict[int, Sgd] = {}
        workers = range(setting.num_workers)
        self.held = [self.weights for _ in workers]  # the parameters that each worker computes at
        self.versions = [0 for _ in workers]  # and how many updates made them
        self.sums = [torch.zeros(TASK.dimensions, dtype=torch.float64) for _ in workers]
        self._left = [0 for _ in workers]  # samples of its batch that each worker has not begun
        self._answers: dict[int, tuple[Tensor, int, bool]] = {}
        self._worker_out = [Link(setting.bandwidth) for _ in workers]
        self._worker_in = [Link(setting.bandwidth) for _ in workers]
        self._server_out = Link(setting.server_bandwidth or setting.bandwidth)
        self._server_in = Link(setting.server_bandwidth or setting.bandwidth)
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, str, int]] = []

    def run(self) -> Result:
        for rank in range(self.setting.num_workers):
            self._begin(0.0, rank)
        while self._heap:
            now, _, what, rank = heapq.heappop(self._heap)
            if what == "computed" and self._left[rank]:
                self._compute(now, rank)
            elif what == "computed":
                self._send(now, "pushed", rank, self._worker_out[rank], self._server_in)
            elif what == "pushed":
                self.arrived(now, rank)
            elif what == "answered":
                self._go_on(now, rank)
        return Result(self.weights, self.steps)

    def arrived(self, now: float, rank: int) -> None:
        """A worker's gradient has come to the server."""
        raise NotImplementedError

    def update(
        self, now: float, mean: Tensor, samples: int, *, staleness: int, lr_scale: float = 1.0, memory: int = 0
    ) -> None:
        """One step of the global parameters, with one of several momenta."""
        optimizer = self.optimizers.setdefault(memory, Sgd(self.setting))
        self.weights = optimizer.moved(self.weights, mean, lr_scale)
        self.samples_done += samples
        self.steps.append(Step(now, samples, staleness, loss(self.weights)))

    def answer(self, now: float, rank: int) -> None:
        """Send a worker the parameters as they are now."""
        self._answers[rank] = (self.weights, len(self.steps), self.samples_done >= self.setting.samples)
        self._send(now, "answered", rank, self._server_out, self._worker_in[rank])

    def _go_on(self, now: float, rank: int) -> None:
        self.held[rank], self.versions[rank], over = self._answers[rank]
        if not over:
            self._begin(now, rank)
        elif self.farewell_bytes:
            self._send(now, "left", rank, self._worker_out[rank], self._server_in, self.farewell_bytes)

    def _begin(self, now: float, rank: int) -> None:
        """A worker begins its next batch, at the parameters it holds."""
        self.sums[rank] = torch.zeros(TASK.dimensions, dtype=torch.float64)
        self._left[rank] = self.setting.batch_size
        self._compute(now, rank)

    def _compute(self, now: float, rank: int) -> None:
        """A worker draws and computes one micro-batch."""
        size = min(self._left[rank], self.setting.micro_batch or self.setting.batch_size)
        self._left[rank] -= size
        self.sums[rank] += gradient_sum(self.held[rank], self.queue.take(size))
        self._at(now + size / self.setting.paces[rank], "computed", rank)

    def _send(self, now: float, what: str, rank: int, out: Link, into: Link, nbytes: int = MESSAGE_BYTES) -> None:
        start = max(now, out.free_at)
        self._at(max(out.occupy(start, nbytes), into.occupy(start, nbytes)) + self.setting.latency, what, rank)

    def _at(self, time: float, what: str, rank: int) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), what, rank))


# What is compared --------------------------------------------------------------------------------------------------


def engine(setting: Setting, name: str, parameters: dict[str, object], **job: object) -> tuple[Outcome, list[Event]]:
    """The same run in the package's virtual time, judged after every update."""
    return simulate(
        make_algorithm(name, parameters),
        setting.fleet,
        task=TASK,
        samples=setting.samples,
        batch_size=setting.batch_size,
        micro_batch=setting.micro_batch,
        lr=setting.lr,
        momentum=setting.momentum,
        weight_decay=setting.weight_decay,
        seed=setting.seed,
        eval_every=1,
        **job,
    )


def updates(events: list[Event]) -> list[Update]:
    return [event for event in events if isinstance(event, Update)]


def assert_same(outcome: Outcome, events: list[Event], expected: Result, *, times: float = 1e-9) -> None:
    """The engine made the same updates, at the same times, and its parameters went the same way."""
    assert (outcome.reason, outcome.error) == ("finished", None)
    made = updates(events)
    assert [update.staleness for update in made] == [step.staleness for step in expected.steps]
    assert [update.samples for update in made] == [step.samples for step in expected.steps]
    assert [update.t for update in made] == pytest.approx([step.t for step in expected.steps], rel=times)
    losses = [event.loss for event in events if isinstance(event, Evaluation)]
    assert losses == pytest.approx([loss(start()), *(step.loss for step in expected.steps)], rel=1e-4)
    torch.testing.assert_close(outcome.model["at"].double(), expected.weights, rtol=1e-4, atol=1e-5)


# Added to whole paces, so that no two workers are ever ready at the same time by accident.
AWKWARD = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13)]


@st.composite
def drawn_settings(draw: st.DrawFn, *, least_workers: int = 1, most_workers: int = 5) -> Setting:
    whole_paces = draw(st.lists(st.integers(200, 5000), min_size=least_workers, max_size=most_workers))
    batch_size = draw(st.integers(1, 12))
    return Setting(
        paces=tuple(pace + extra for pace, extra in zip(whole_paces, AWKWARD, strict=False)),
        batch_size=batch_size,
        micro_batch=draw(st.none() | st.integers(1, batch_size)),
        samples=draw(st.integers(1, 60 * batch_size)),
        lr=draw(st.floats(0.01, 0.2)),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.01, 0.1])),
        # From a message that takes as long as a batch to one that takes no time to speak of.
        bandwidth=draw(st.integers(2_000, 1_000_000)) + math.pi,
        server_bandwidth=draw(st.none() | st.integers(2_000, 1_000_000).map(lambda whole: whole + math.e)),
        latency=draw(st.sampled_from([0.0, 1.7e-4, 3.1e-2])),
        seed=draw(st.integers(0, 1000)),
    )
