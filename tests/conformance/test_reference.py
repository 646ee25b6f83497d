"""The baselines against a second, plain statement of each: explicit loops, hand-written SGD, no engine.

The references are written from the definitions, not from `ownpace.algorithms`. They share with the package only
the task's data and the order in which samples are handed out. Everything else (gradients, optimizer, timing of
computing and of links, who waits for whom) is stated here once more, in float64 and as slowly as it reads.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Evaluation, Event, Update
from ownpace.core.learning.sampling import Permutations
from ownpace.engines import Outcome
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, Slowdown
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

# 101 samples: prime, so that batches straddle the end of an epoch.
TASK = Quadratic(dimensions=7, num_samples=101)
MESSAGE_BYTES = 4 * TASK.dimensions
NO_BOUND = math.inf


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
    bandwidth: float = 10_000.0
    server_bandwidth: float | None = None
    latency: float = 1e-3
    seed: int = 0
    slow: Slow | None = None

    @property
    def num_workers(self) -> int:
        return len(self.paces)


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
    steps: list[Step]
    sizes: list[list[int]] = field(default_factory=list)
    """Of each round: every worker's batch, by rank."""


# The parts that all references share ------------------------------------------------------------------------------


class Model:
    """The global parameters and SGD with momentum and weight decay, in torch's convention."""

    def __init__(self, setting: Setting) -> None:
        self.weights = torch.ones(TASK.dimensions, dtype=torch.float64)
        self.buffer: Tensor | None = None
        self.setting = setting

    def step(self, gradient: Tensor) -> None:
        """One step along a mean gradient."""
        gradient = gradient + self.setting.weight_decay * self.weights
        self.buffer = gradient if self.buffer is None else self.setting.momentum * self.buffer + gradient
        self.weights = self.weights - self.setting.lr * self.buffer


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


def when_computed(setting: Setting, rank: int, start: float, samples: int) -> float:
    """When a worker that begins `samples` samples at `start` is done with them."""
    left = samples / setting.paces[rank]  # seconds of undisturbed work
    slow = setting.slow
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


def ring_seconds(setting: Setting) -> float:
    """How long a ring all-reduce of one gradient takes."""
    hops = 2 * (setting.num_workers - 1)
    return hops / setting.num_workers * MESSAGE_BYTES / setting.bandwidth + hops * setting.latency


# Sync and balanced: rounds with a barrier --------------------------------------------------------------------------


def synchronous(setting: Setting, smoothing: float | None = None) -> Result:
    """Rounds with a barrier; with `smoothing`, the batches follow the measured speeds (balanced).

    The first round of each division is not measured: on cards it would be that of choosing kernels.
    """
    model, draws = Model(setting), Draws(setting.seed)
    whole = setting.num_workers * setting.batch_size
    sizes = [setting.batch_size] * setting.num_workers
    speeds: list[float] | None = None
    result = Result(model.weights, [])
    now, done, rounds_alike = 0.0, 0, 0
    while done < setting.samples:
        total = torch.zeros(TASK.dimensions, dtype=torch.float64)
        for size in sizes:
            total += gradient_sum(model.weights, draws.take(size))
        ends = [when_computed(setting, rank, now, size) for rank, size in enumerate(sizes)]
        measured = [size / (end - now) for size, end in zip(sizes, ends, strict=True)]
        now = max(ends) + ring_seconds(setting)
        model.step(total / whole)
        done += whole
        result.steps.append(Step(now, whole, staleness=0))
        result.sizes.append(sizes)
        rounds_alike += 1
        if smoothing is not None and rounds_alike > 1:
            speeds = measured if speeds is None else blend(speeds, measured, smoothing)
            before, sizes = sizes, shares(speeds, whole)
            if sizes != before:
                rounds_alike = 0
    result.weights = model.weights
    return result


def blend(old: Sequence[float], new: Sequence[float], weight: float) -> list[float]:
    """The exponential mean, with `weight` for the newest."""
    return [(1 - weight) * before + weight * now for before, now in zip(old, new, strict=True)]


def shares(speeds: Sequence[float], whole: int) -> list[int]:
    """`whole` samples in proportion to the speeds: by largest remainder, ties to the lower rank.

    Where that leaves a worker with nothing, it gets one sample from whoever has most (of several: the lowest rank).
    """
    exact = [whole * speed / sum(speeds) for speed in speeds]
    sizes = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: (sizes[rank] - exact[rank], rank))
    for rank in by_remainder[: whole - sum(sizes)]:
        sizes[rank] += 1
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


# Async and stale: one server, and an event loop of its own ---------------------------------------------------------


@dataclass
class Link:
    """One direction of a machine's link: what comes first goes first."""

    bandwidth: float
    free_at: float = 0.0

    def occupy(self, start: float) -> float:
        """Send or receive one message from `start` on; returns when its last byte is through."""
        self.free_at = max(start, self.free_at) + MESSAGE_BYTES / self.bandwidth
        return self.free_at


class ParameterServer:
    """A run with one server, as a loop over a heap of (time, number, what happened, rank)."""

    def __init__(self, setting: Setting, bound: float) -> None:
        self.setting = setting
        self.bound = bound
        self.model = Model(setting)
        self.draws = Draws(setting.seed)
        self.steps: list[Step] = []
        self.samples_done = 0
        workers = range(setting.num_workers)
        self.clocks = [0 for _ in workers]
        self.waiting: list[int] = []
        self.held = [self.model.weights for _ in workers]  # the parameters that each worker computes at
        self.versions = [0 for _ in workers]
        self.sums = [torch.zeros(TASK.dimensions, dtype=torch.float64) for _ in workers]
        self.left = [0 for _ in workers]  # samples of its batch that each worker has not begun
        self.answers: dict[int, tuple[Tensor, int, bool]] = {}
        self.worker_out = [Link(setting.bandwidth) for _ in workers]
        self.worker_in = [Link(setting.bandwidth) for _ in workers]
        self.server_out = Link(setting.server_bandwidth or setting.bandwidth)
        self.server_in = Link(setting.server_bandwidth or setting.bandwidth)
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, str, int]] = []

    def run(self) -> Result:
        for rank in range(self.setting.num_workers):
            self._begin(0.0, rank)
        while self._heap:
            now, _, what, rank = heapq.heappop(self._heap)
            if what == "computed" and self.left[rank]:
                self._compute(now, rank)
            elif what == "computed":
                self._send(now, "pushed", rank, self.worker_out[rank], self.server_in)
            elif what == "pushed":
                self._apply(now, rank)
            else:
                self.held[rank], self.versions[rank], over = self.answers[rank]
                if not over:
                    self._begin(now, rank)
        return Result(self.model.weights, self.steps)

    def _at(self, time: float, what: str, rank: int) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), what, rank))

    def _begin(self, now: float, rank: int) -> None:
        """A worker begins its next batch, at the parameters it holds."""
        self.sums[rank] = torch.zeros(TASK.dimensions, dtype=torch.float64)
        self.left[rank] = self.setting.batch_size
        self._compute(now, rank)

    def _compute(self, now: float, rank: int) -> None:
        """A worker draws and computes one micro-batch."""
        size = min(self.left[rank], self.setting.micro_batch or self.setting.batch_size)
        self.left[rank] -= size
        self.sums[rank] += gradient_sum(self.held[rank], self.draws.take(size))
        self._at(when_computed(self.setting, rank, now, size), "computed", rank)

    def _send(self, now: float, what: str, rank: int, out: Link, into: Link) -> None:
        start = max(now, out.free_at)
        self._at(max(out.occupy(start), into.occupy(start)) + self.setting.latency, what, rank)

    def _apply(self, now: float, rank: int) -> None:
        """The server has a worker's gradient: one update at once, and answers to all who may go on."""
        self.model.step(self.sums[rank] / self.setting.batch_size)
        self.steps.append(Step(now, self.setting.batch_size, len(self.steps) - self.versions[rank]))
        self.samples_done += self.setting.batch_size
        self.clocks[rank] += 1
        self.waiting.append(rank)
        over = self.samples_done >= self.setting.samples
        for waiting in list(self.waiting):
            if over or self.clocks[waiting] - min(self.clocks) <= self.bound:
                self.waiting.remove(waiting)
                self.answers[waiting] = (self.model.weights, len(self.steps), over)
                self._send(now, "answered", waiting, self.server_out, self.worker_in[waiting])


# What is compared --------------------------------------------------------------------------------------------------


def fleet_of(setting: Setting) -> Fleet:
    machines = []
    for rank, pace in enumerate(setting.paces):
        slow = setting.slow
        spans = () if slow is None or slow.rank != rank else (slow,)
        slowdowns = tuple(Slowdown(from_s=span.from_s, until_s=span.until_s, factor=span.factor) for span in spans)
        machines.append(Machine(samples_per_s=pace, slowdown=slowdowns))
    network = Network(bandwidth_bytes_per_s=setting.bandwidth, latency_s=setting.latency)
    server = ServerMachine(bandwidth_bytes_per_s=setting.server_bandwidth)
    return Fleet(machine=tuple(machines), network=network, server=(server,))


def engine(setting: Setting, name: str, **parameters: object) -> tuple[Outcome, list[Event]]:
    return simulate(
        make_algorithm(name, parameters),
        fleet_of(setting),
        task=TASK,
        samples=setting.samples,
        batch_size=setting.batch_size,
        micro_batch=setting.micro_batch,
        lr=setting.lr,
        momentum=setting.momentum,
        weight_decay=setting.weight_decay,
        seed=setting.seed,
    )


def updates(events: list[Event]) -> list[Update]:
    return [event for event in events if isinstance(event, Update)]


def batches(events: list[Event], setting: Setting) -> list[list[int]]:
    """Of each round: the size of every worker's batch, by rank, whatever micro-batches it came in."""
    sizes = [[0] * setting.num_workers for _ in updates(events)]
    for event in events:
        if isinstance(event, Compute):
            rank = int(event.who.removeprefix("worker-"))
            sizes[event.version][rank] += event.samples
    return sizes


def assert_same(outcome: Outcome, events: list[Event], expected: Result) -> None:
    """The engine made the same updates, at the same times, and ended at the same parameters."""
    assert (outcome.reason, outcome.error) == ("finished", None)
    made = updates(events)
    assert [update.staleness for update in made] == [step.staleness for step in expected.steps]
    assert [update.samples for update in made] == [step.samples for step in expected.steps]
    assert [update.t for update in made] == pytest.approx([step.t for step in expected.steps], rel=1e-9)
    assert [update.version for update in made] == list(range(1, len(made) + 1))
    totals = list(itertools.accumulate(step.samples for step in expected.steps))
    assert [update.total_samples for update in made] == totals
    torch.testing.assert_close(outcome.model["at"].double(), expected.weights, rtol=1e-4, atol=1e-5)
    assert last_loss(events) == pytest.approx(loss(expected.weights), rel=1e-4)


def loss(weights: Tensor) -> float:
    """The mean of ½·Σ a(w − x)² over all samples."""
    distances = weights - TASK.test_samples().inputs.double()
    return float((0.5 * TASK.curvatures.double() * distances.square()).sum(1).mean())


def last_loss(events: list[Event]) -> float:
    return [event.loss for event in events if isinstance(event, Evaluation)][-1]


# The tests ---------------------------------------------------------------------------------------------------------

# Added to whole paces, so that no two workers are ever ready at the same time by accident.
AWKWARD = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11)]

common = settings(max_examples=30, deadline=None)


@st.composite
def drawn_settings(draw: st.DrawFn, *, most_workers: int = 5, slow: bool = False) -> Setting:
    whole_paces = draw(st.lists(st.integers(200, 5000), min_size=1, max_size=most_workers))
    paces = tuple(pace + extra for pace, extra in zip(whole_paces, AWKWARD, strict=False))
    batch_size = draw(st.integers(1, 12))
    return Setting(
        paces=paces,
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
        slow=draw(drawn_slowdowns(len(paces))) if slow else None,
    )


@st.composite
def drawn_slowdowns(draw: st.DrawFn, num_workers: int) -> Slow:
    start = draw(st.integers(0, 100)) / 1000 * math.sqrt(2)
    length = draw(st.integers(1, 200)) / 1000 * math.sqrt(3)
    factor = draw(st.integers(1, 8)) + 1 / math.e
    return Slow(draw(st.integers(0, num_workers - 1)), start, start + length, factor)


@common
@given(drawn_settings())
def test_sync_is_the_mean_over_all_workers_behind_a_barrier(setting: Setting) -> None:
    outcome, events = engine(setting, "sync")
    expected = synchronous(setting)
    assert_same(outcome, events, expected)
    assert batches(events, setting) == expected.sizes


@common
@given(drawn_settings(slow=True), st.sampled_from([0.1, 0.3, 0.7, 1.0]))
@example(Setting(paces=(1000.0, 1000.0, 5.0), batch_size=2, samples=30), 0.3)  # two have most, one has nothing
def test_balanced_gives_each_worker_its_share_of_one_batch(setting: Setting, smoothing: float) -> None:
    outcome, events = engine(setting, "balanced", smoothing=smoothing, tolerance=0.0)
    expected = synchronous(setting, smoothing)
    assert_same(outcome, events, expected)
    assert batches(events, setting) == expected.sizes


@common
@given(drawn_settings())
def test_async_applies_each_push_at_once(setting: Setting) -> None:
    outcome, events = engine(setting, "async")
    assert_same(outcome, events, ParameterServer(setting, NO_BOUND).run())


@common
@given(drawn_settings(), st.integers(0, 4))
def test_stale_holds_back_who_is_too_far_ahead(setting: Setting, bound: int) -> None:
    outcome, events = engine(setting, "stale", staleness=bound)
    assert_same(outcome, events, ParameterServer(setting, bound).run())


@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("bound", [0, 1, None])
def test_workers_that_are_ready_together_are_served_by_rank(num_workers: int, bound: int | None) -> None:
    # Powers of two, so that equal times are equal to the last bit.
    setting = Setting(
        paces=(1024.0,) * num_workers, bandwidth=float(MESSAGE_BYTES * 64), latency=1 / 1024, momentum=0.5
    )
    outcome, events = engine(setting, "async") if bound is None else engine(setting, "stale", staleness=bound)
    assert_same(outcome, events, ParameterServer(setting, NO_BOUND if bound is None else bound).run())


@pytest.mark.parametrize(
    ("speeds", "whole", "expected"),
    [
        ([4, 2, 1, 1], 32, [16, 8, 4, 4]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([4, 2, 1, 1], 10, [5, 3, 1, 1]),
        ([100, 100, 1], 6, [2, 3, 1]),
    ],
)
def test_the_reference_divides_as_by_hand(speeds: list[float], whole: int, expected: list[int]) -> None:
    assert shares(speeds, whole) == expected
