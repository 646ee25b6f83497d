"""ABS-SGD, Pace-SGD, Pipe-SGD and ACCO against plain statements of each, and what must hold of them.

A reference goes in two stages, because time does not depend on values. First the timeline: who computes how many
micro-batches until which sum is there. Then the mathematics, update by update, on the samples that the timeline gives
to each batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import (
    AWKWARD,
    TASK,
    Draws,
    Model,
    Record,
    Result,
    Setting,
    Step,
    assert_same,
    engine,
    fleet_of,
    gradient_sum,
    spied,
    updates,
)
from torch import Tensor, nn

from ownpace import make_algorithm
from ownpace.core.blocks.lr_rules import LrRule
from ownpace.core.contract.events import Compute, Event
from ownpace.core.contract.values import Gradient, union
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.schedule import Schedule
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.fleet import PRESETS, Fleet, Machine, Network, Slowdown, paces
from ownpace.report import summarize
from ownpace.tasks import Quadratic
from ownpace.testing import run_on, simulate

# First stage: who computes what, when ------------------------------------------------------------------------------


Micro = Sequence[Sequence[int]] | None
"""The sizes of each worker's micro-batches in order; None: all alike."""


@dataclass(frozen=True, order=True)
class Piece:
    """One micro-batch."""

    start: float
    rank: int
    size: int
    batch: int


@dataclass
class Batch:
    """What all workers compute between two sums, and its own sum."""

    sizes: list[int]
    """n_i."""
    joined: list[float]
    """When each worker handed its part over to the sum."""
    summed: float
    """When the sum was there."""

    @property
    def samples(self) -> int:
        return sum(self.sizes)


class Timeline:
    """Batch after batch; each worker begins one when it has handed over the one before."""

    def __init__(self, setting: Setting, micro: Micro = None) -> None:
        self.setting = setting
        self.pieces: list[Piece] = []
        self.batches: list[Batch] = []
        self._micro = [iter(sizes) for sizes in micro] if micro else [itertools.repeat(setting.micro)] * len(self.ranks)
        self._free = [0.0 for _ in self.ranks]

    @property
    def ranks(self) -> range:
        return range(self.setting.num_workers)

    def one_each(self, *, wait: bool = False) -> None:
        """One micro-batch each, whatever is under way. With `wait`, nobody goes on before its sum is there."""
        self._add([self._compute(rank, itertools.islice(self._micro[rank], 1)) for rank in self.ranks])
        if wait:
            self._free = [self.batches[-1].summed for _ in self.ranks]

    def until_summed(self) -> None:
        """Micro-batches, at least one, until the sum of the batch before is there."""
        self._add([self._compute(rank, self._micro[rank]) for rank in self.ranks])

    def whole(self) -> None:
        """The same batch for everybody, in micro-batches; then the sum of the batch before is awaited."""
        size, micro = self.setting.batch_size, self.setting.micro
        cut = [min(micro, size - start) for start in range(0, size, micro)]
        self._add([self._compute(rank, cut, full=True) for rank in self.ranks])

    def _compute(self, rank: int, sizes: Iterable[int], *, full: bool = False) -> tuple[int, float]:
        """How many samples a worker computes, and when it is through."""
        now, samples = self._free[rank], 0
        for size in sizes:
            self.pieces.append(Piece(now, rank, size, len(self.batches)))
            now += size / self.setting.paces[rank]
            samples += size
            if not full and (not self.batches or now >= self.batches[-1].summed):
                break
        return samples, now

    def _add(self, computed: list[tuple[int, float]]) -> None:
        before = self.batches[-1].summed if self.batches else 0.0
        self._free = [max(end, before) for _, end in computed]
        summed = max(self._free) + self.setting.ring_seconds
        self.batches.append(Batch([samples for samples, _ in computed], self._free, summed))

    def known(self, index: int) -> float:
        """When the first worker applied the sum of a batch: after its next one, or, at the end, at once."""
        following = self.batches[index + 1 : index + 2]
        return min(following[0].joined) if following else self.batches[index].summed

    def inputs(self) -> list[list[list[Tensor]]]:
        """The samples of each batch and rank, as micro-batches: whoever begins first draws first."""
        draws = Draws(self.setting.seed)
        given_out: list[list[list[Tensor]]] = [[[] for _ in self.setting.paces] for _ in self.batches]
        for piece in sorted(self.pieces):
            given_out[piece.batch][piece.rank].append(draws.take(piece.size))
        return given_out


def recorded(events: list[Event], setting: Setting) -> Micro:
    """The sizes of each worker's micro-batches as they were: how they are chosen is not the references' business."""
    return [
        [event.samples for event in events if isinstance(event, Compute) and event.who == f"worker-{rank}"]
        for rank in range(setting.num_workers)
    ]


# Second stage: what comes out --------------------------------------------------------------------------------------


def sum_at(point: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    return sum(gradient_sum(point, piece) for piece in pieces)


def lr_scale(rule: str, samples: int, setting: Setting) -> float:
    """η / η_ref for an update of so many samples."""
    share = samples / (setting.batch_size * setting.num_workers)
    return {"constant": 1.0, "linear": share, "sqrt": math.sqrt(share)}[rule]


def delayed(
    setting: Setting, micro: Micro = None, *, predict: str = "none", rule: str = "constant", warmup: int = 0
) -> Result:
    """ABS-SGD (`none`) and Pace-SGD (`own`, `share`)."""
    timeline, done = Timeline(setting, micro), 0
    while len(timeline.batches) < warmup and done < setting.samples:
        timeline.one_each(wait=True)
        done += timeline.batches[-1].samples
    num_sync = len(timeline.batches)
    if done < setting.samples:
        timeline.one_each()
    while done < setting.samples:
        timeline.until_summed()
        done += timeline.batches[-2].samples

    model, inputs, steps, scale = Model(setting), timeline.inputs(), [], 1.0
    sums: list[list[Tensor]] = []
    for k in range(len(timeline.batches) + 1):
        if k < len(timeline.batches):  # batch k, at w or at a point ahead of it
            points = [model.weights] * setting.num_workers
            if k > num_sync and predict != "none":
                ahead = [guess(predict, rank, k - 1, sums, timeline.batches) for rank in range(setting.num_workers)]
                points = [model.peek(gradient, scale) for gradient in ahead]
            sums.append([sum_at(point, pieces) for point, pieces in zip(points, inputs[k], strict=True)])
        applied = k if k < num_sync else k - 1
        if applied >= len(steps):  # the update with the sum that is there by now
            batch = timeline.batches[applied]
            scale = lr_scale(rule, batch.samples, setting)
            model.step(sum(sums[applied]) / batch.samples, batch.samples, scale)
            time = batch.summed if applied < num_sync else timeline.known(applied)
            steps.append(Step(time, batch.samples, staleness=int(applied > num_sync)))
    return Result(model.weights, steps)


def guess(predict: str, rank: int, under_way: int, sums: list[list[Tensor]], batches: list[Batch]) -> Tensor:
    """ĝ_i = α_i·ḡ_i + (1 − α_i)·ḡ_last: the own part of the sum under way, and the last sum that is known."""
    own = sums[under_way][rank] / batches[under_way].sizes[rank]
    if predict == "own" or under_way == 0:
        return own
    last = batches[under_way - 1]
    alpha = last.sizes[rank] / last.samples
    return alpha * own + (1 - alpha) * sum(sums[under_way - 1]) / last.samples


def pipelined(setting: Setting) -> Result:
    """Pipe-SGD: equal batches; the gradient at w_{t−1} is applied to w_t."""
    timeline, done = Timeline(setting), 0
    timeline.whole()
    while done < setting.samples:
        timeline.whole()
        done += timeline.batches[-2].samples
    model, inputs, steps = Model(setting), timeline.inputs(), []
    sums: list[Tensor] = []
    for k, batch in enumerate(timeline.batches):
        sums.append(sum(sum_at(model.weights, pieces) for pieces in inputs[k]))
        if k > 0:
            model.step(sums[k - 1] / batch.samples, batch.samples)
            steps.append(Step(timeline.known(k - 1), batch.samples, staleness=int(k > 1)))
    model.step(sums[-1] / batch.samples, batch.samples)
    steps.append(Step(batch.summed, batch.samples, staleness=1))
    return Result(model.weights, steps)


def accumulated(setting: Setting, micro: Micro = None, *, rule: str = "constant") -> Result:
    """ACCO: A_t at the estimate w̃_t, B_t at w_t; w̃_{t+1} = Opt(w_t, A_t) is not kept; w_{t+1} = Opt(w_t, A_t + B_t)."""
    timeline, done = Timeline(setting, micro), 0
    timeline.one_each()  # A_0
    while done < setting.samples:
        timeline.until_summed()  # B_t
        timeline.until_summed()  # A_{t+1}
        done += timeline.batches[-3].samples + timeline.batches[-2].samples
    model, inputs, steps = Model(setting), timeline.inputs(), []
    estimate, scale = model.weights, 1.0
    for first in range(0, len(timeline.batches), 2):
        a, both = timeline.batches[first], timeline.batches[first : first + 2]
        total = a_total = sum(sum_at(estimate, pieces) for pieces in inputs[first])
        if len(both) == 2:
            total = a_total + sum(sum_at(model.weights, pieces) for pieces in inputs[first + 1])
            estimate = model.peek(a_total / a.samples, scale)
        samples = sum(batch.samples for batch in both)
        scale = lr_scale(rule, samples, setting)
        model.step(total / samples, samples, scale)
        steps.append(Step(timeline.known(first + len(both) - 1), samples, staleness=int(first > 0)))
    return Result(model.weights, steps)


# Against the references --------------------------------------------------------------------------------------------


@st.composite
def drawn_settings(draw: st.DrawFn) -> Setting:
    whole_paces = draw(st.lists(st.integers(200, 5000), min_size=1, max_size=5))
    batch_size = draw(st.integers(1, 12))
    return Setting(
        paces=tuple(pace + extra for pace, extra in zip(whole_paces, AWKWARD, strict=False)),
        batch_size=batch_size,
        micro_batch=draw(st.none() | st.integers(1, batch_size)),
        samples=draw(st.integers(1, 120 * batch_size)),
        lr=draw(st.floats(0.01, 0.05)),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        cosine=draw(st.booleans()),
        # From a sum that takes as long as several micro-batches to one that takes no time to speak of.
        bandwidth=draw(st.integers(2_000, 1_000_000)) + math.pi,
        latency=draw(st.sampled_from([0.0, 1.7e-4, 3.1e-3])),
        seed=draw(st.integers(0, 1000)),
    )


sizings = st.sampled_from(["fixed", "equal-time"])
rules = st.sampled_from(["constant", "linear", "sqrt"])


@settings(max_examples=40)
@given(drawn_settings(), sizings, rules)
def test_abs_applies_each_sum_one_update_late(setting, sizing, rule):
    outcome, events = engine(setting, "abs", micro=sizing, lr_rule=rule)
    micro = None if sizing == "fixed" else recorded(events, setting)
    assert_same(outcome, events, delayed(setting, micro, rule=rule))


@settings(max_examples=60)
@given(drawn_settings(), st.sampled_from(["own", "share"]), sizings, rules, st.integers(0, 3))
def test_pace_computes_where_the_optimizer_is_about_to_be(setting, predict, sizing, rule, warmup):
    outcome, events = engine(setting, "pace", predict=predict, micro=sizing, lr_rule=rule, warmup=warmup)
    micro = None if sizing == "fixed" else recorded(events, setting)
    expected = delayed(setting, micro, predict=predict, rule=rule, warmup=warmup)
    assume(len(expected.steps) != warmup)  # see test_a_budget_that_is_spent_with_the_warm_up_is_spent
    assert_same(outcome, events, expected)


def test_a_budget_that_is_spent_with_the_warm_up_is_spent():
    _, events = engine(Setting(paces=(1001.0, 1003.0), samples=40), "pace", warmup=5)
    assert [update.total_samples for update in updates(events)] == [8, 16, 24, 32, 40]


@settings(max_examples=30)
@given(drawn_settings())
def test_pipe_applies_equal_batches_one_update_late(setting):
    outcome, events = engine(setting, "pipe")
    assert_same(outcome, events, pipelined(setting))


@settings(max_examples=40)
@given(drawn_settings(), sizings, rules)
def test_acco_speculates_with_one_half_and_commits_with_both(setting, sizing, rule):
    outcome, events = engine(setting, "acco", micro=sizing, lr_rule=rule)
    micro = None if sizing == "fixed" else recorded(events, setting)
    assert_same(outcome, events, accumulated(setting, micro, rule=rule))


# What must hold of ABS-SGD -----------------------------------------------------------------------------------------

UNEVEN = Setting(
    paces=(4003.0, 2005.0, 1007.0, 1009.0), batch_size=8, samples=3600, lr=0.02, momentum=0.5, latency=2e-3
)
late = pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("abs", {}),
        ("abs", {"micro": "equal-time"}),
        ("pace", {"predict": "own"}),
        ("pace", {"predict": "share", "micro": "fixed"}),
    ],
)


def watched(setting: Setting, name: str, **parameters: object) -> tuple[list[Event], list[Record]]:
    """The events of a run, and the record of each worker, by rank."""
    algorithm, records = spied(name, **parameters)
    outcome, events = engine(setting, algorithm)
    assert outcome.error is None
    return events, [records[rank] for rank in range(setting.num_workers)]


@late
def test_a_batch_is_computed_at_one_version_and_applied_to_the_next(name, parameters):
    events, records = watched(UNEVEN, name, **parameters)
    num = len(updates(events))
    assert num > 20
    assert [update.staleness for update in updates(events)] == [0] + [1] * (num - 1)
    assert max(len(sums.versions) for record in records for sums in record.sums) > 5  # else nothing could be mixed
    for record in records:
        assert len(record.sums) == len(record.steps) == num
        for t, sums in enumerate(record.sums):
            # w_1 = w_0: the first two batches belong to the parameters before any update.
            assert set(sums.versions) == {max(0, t - 1)}
            assert all(point is sums.points[0] for point in sums.points)
    for record in records if name == "abs" else ():
        for t, sums in enumerate(record.sums):
            assert torch.equal(sums.points[0], record.steps[max(0, t - 1)].before)
        assert torch.equal(record.steps[0].before, torch.ones(7))


@late
def test_the_mean_is_that_over_the_union(name, parameters):
    _, records = watched(UNEVEN, name, **parameters)
    unequal = 0
    for t, committed in enumerate(records[0].steps):
        total = committed.gradient
        parts = [record.sums[t].gradient for record in records]
        weights = [share.samples / total.samples for share in total.contributions]
        assert math.fsum(weights) == pytest.approx(1, abs=1e-12)
        assert [share.samples for share in total.contributions] == [part.samples for part in parts]
        weighted = sum(weight * part.mean for weight, part in zip(weights, parts, strict=True))
        torch.testing.assert_close(weighted, total.mean, rtol=1e-5, atol=1e-6)
        unequal += not torch.allclose(sum(part.mean for part in parts) / 4, total.mean, rtol=1e-2)
    assert unequal > 10  # else a mean of means would have passed


@late
def test_replicas_are_the_same_bit_for_bit_after_every_update(name, parameters):
    _, records = watched(UNEVEN, name, **parameters)
    for steps in zip(*(record.steps for record in records), strict=True):
        assert all(torch.equal(steps[0].after, other.after) for other in steps[1:])
        assert not torch.equal(steps[0].after, steps[0].before)


def test_replicas_are_the_same_on_processes():
    outcome, events = run_on(
        "process", make_algorithm("pace"), paces(3000, 1000, jitter=0.2), samples=1600, momentum=0.9, lr=0.02
    )
    assert outcome.error is None
    assert summarize(events).replicas_identical is True
    made = updates(events)
    assert [update.staleness for update in made] == [0] + [1] * (len(made) - 1)


class Ballot(Task):
    """The gradient of sample k is 1 at place k and 0 elsewhere, so a sum of gradients says whose it is."""

    num_samples = 101

    def model(self) -> nn.Module:
        linear = nn.Linear(self.num_samples, 1, bias=False)
        nn.init.zeros_(linear.weight)
        return linear

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    def num_right(self, outputs: Tensor, targets: Tensor) -> None:
        return None

    def train_samples(self) -> TensorSamples:
        return TensorSamples(torch.eye(self.num_samples), torch.zeros(self.num_samples))

    test_samples = train_samples


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("abs", {}),
        ("pace", {}),
        ("pace", {"warmup": 3, "max_batch": 60}),
        ("pipe", {}),
        ("acco", {}),
        ("od", {"warmup": 2, "form": "all-reduce"}),
    ],
)
def test_no_sample_is_lost_and_none_counted_twice(name, parameters):
    algorithm, records = spied(name, **parameters)
    fleet = paces(4003, 2005, 1007, 1009, jitter=0.3, network=Network(latency_s=2e-3))
    _, events = simulate(algorithm, fleet, task=Ballot(), samples=1500, micro_batch=5, lr=0.01)
    votes = sum(committed.gradient.total for committed in records[0].steps).round().long()
    drawn = sum(event.samples for event in events if isinstance(event, Compute))
    assert drawn >= 1500
    order = Permutations(101, 0, 0).indices(0, drawn)
    assert torch.equal(votes, torch.bincount(order, minlength=101))
    assert drawn == sum(update.samples for update in updates(events))


EQUAL = Setting(paces=(1000.0,) * 3, batch_size=8, samples=960, lr=0.02, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("sum_s", [1e-12, 1e-3, 7.9e-3])
@pytest.mark.parametrize("sizing", ["fixed", "equal-time"])
def test_abs_among_equals_is_pipe(sum_s, sizing):
    """As long as a sum takes less time than a batch; that it takes next to none does not make it Sync-SGD."""
    setting = EQUAL.with_ring(sum_s)
    ours, events = engine(setting, "abs", micro=sizing)
    pipe, pipe_events = engine(setting, "pipe")
    assert torch.equal(ours.model["at"], pipe.model["at"])
    assert [update.t for update in updates(events)] == [update.t for update in updates(pipe_events)]
    assert [update.staleness for update in updates(events)] == [0] + [1] * 40

    sync, _ = engine(setting, "sync")
    assert not torch.allclose(ours.model["at"], sync.model["at"], rtol=0.01)


def test_abs_among_equals_is_not_pipe_if_a_sum_takes_longer_than_a_batch():
    setting = EQUAL.with_ring(9e-3)
    _, events = engine(setting, "abs")
    assert [update.samples for update in updates(events)] == [24] + [48] * (len(updates(events)) - 1)


@pytest.mark.parametrize("sizing", ["fixed", "equal-time"])
def test_without_delay_it_is_sync_weighted_by_the_recorded_samples(sizing):
    """Pace-SGD's warm-up is what its batches would be without delay: replayed by hand, on the recorded n_i."""
    setting = replace(UNEVEN, momentum=0.9, weight_decay=0.1, cosine=True)
    events, records = watched(setting, "pace", warmup=10**6, micro=sizing)
    sizes = [[share.samples for share in committed.gradient.contributions] for committed in records[0].steps]
    assert sizes[-1] == ([8, 8, 8, 8] if sizing == "fixed" else [8, 4, 2, 2])
    assert {update.staleness for update in updates(events)} == {0}
    model, draws = Model(setting), Draws(0)
    for row in sizes:
        means = [gradient_sum(model.weights, draws.take(size)) / size for size in row]
        weighted = sum(size / sum(row) * mean for size, mean in zip(row, means, strict=True))
        model.step(weighted, sum(row))
    torch.testing.assert_close(records[0].steps[-1].after.double(), model.weights, rtol=1e-4, atol=1e-5)


# Time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "sum_s", "micro_batches", "period"),
    [
        ((1, 1, 1, 1), 0.5, (1, 1, 1, 1), 1.0),
        ((1, 1, 1, 4), 0.5, (4, 4, 4, 1), 4.0),
        ((1, 1, 2, 2), 3.0, (4, 4, 2, 2), 4.0),
    ],
)
@pytest.mark.parametrize("name", ["abs", "pace"])
def test_the_table_of_times(name, seconds, sum_s, micro_batches, period):
    """τ and C give micro-batches per iteration and its period; with powers of two, to the last bit."""
    setting = Setting(paces=tuple(4 / tau for tau in seconds), batch_size=4, samples=400).with_ring(sum_s)
    assert setting.ring_seconds == sum_s
    events, records = watched(setting, name, micro="fixed")
    times = [update.t for update in updates(events)[:-1]]  # the last is made as soon as its sum is there
    assert len(times) > 5
    assert {b - a for a, b in itertools.pairwise(times)} == {period}
    for rank, expected in enumerate(micro_batches):
        assert {len(sums.versions) for sums in records[rank].sums[1:]} == {expected}


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_a_sum_that_takes_twice_as_long_changes_no_throughput(name):
    rates = {name: [], "sync": []}
    for sum_s in (0.02, 0.04, 0.08):
        setting = Setting(paces=(4000.0, 2000.0, 1000.0, 1000.0)).with_ring(sum_s)
        for each, so_far in rates.items():
            _, events = simulate(
                make_algorithm(each), fleet_of(setting), task=TASK, samples=20_000, batch_size=16, timing_only=True
            )
            made = updates(events)[10:-2]
            so_far.append((made[-1].total_samples - made[0].total_samples) / (made[-1].t - made[0].t))
            if each == name:
                assert min(summarize(events).busy.values()) > 1 - 1e-9
    assert rates[name] == pytest.approx([8000] * 3, rel=0.01)
    assert rates["sync"][0] > 2 * rates["sync"][2]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["abs", "pace"])
def test_nothing_but_the_last_sum_is_missing_to_the_limit(name, preset):
    """Nobody ever waits, so only what is under way at the end is not counted."""
    _, events = simulate(
        make_algorithm(name), PRESETS[preset][1], seconds=48.0, batch_size=64, timing_only=True, detail=False
    )
    summary = summarize(events)
    assert 0.98 <= summary.share_of_limit <= 1.02
    assert min(summary.busy.values()) > 0.999


# Stability ---------------------------------------------------------------------------------------------------------


def companion(name: str, h: float, mu: float, alpha: float) -> np.ndarray:
    """One update on a parabola, η·a = h, all workers alike: the matrix that acts on (w_t, w_{t−1}, a, b).

    Here a and b are (in units of 1/curvature) the gradients under way and applied last; for ACCO, a is the estimate.
    """
    if name == "sync":  # w' = w + μ(w − w₋) − h·w
        return np.array([[1 + mu - h, -mu], [1, 0]])
    if name == "abs":  # w' = w + μ(w − w₋) − h·a, and what is computed meanwhile is at w
        return np.array([[1 + mu, -mu, -h], [1, 0, 0], [1, 0, 0]])
    if name == "pace":  # the same, but computed at w + μ(w − w₋) − h(α·a + (1 − α)·b)
        ahead = [1 + mu, -mu, -h * alpha, -h * (1 - alpha)]
        return np.array([[1 + mu, -mu, -h, 0], [1, 0, 0, 0], ahead, [0, 0, 1, 0]])
    assert (name, mu) == ("acco", 0)  # w' = w − h(e + w)/2, e' = w − h·e
    return np.array([[1 - h / 2, -h / 2], [1, -h]])


def radius(name: str, h: float, mu: float, alpha: float) -> float:
    return float(np.abs(np.linalg.eigvals(companion(name, h, mu, alpha))).max())


def final_distance(name: str, num_workers: int, h: float, mu: float, num_updates: int, **parameters: object) -> float:
    """|w| after so many updates from w = 1, where the minimum is at 0 and the curvature is 1: of ten, the largest."""
    algorithm, records = spied(name, **parameters)
    simulate(
        algorithm,
        paces(*[1024] * num_workers, jitter=0.0, network=Network(bandwidth_bytes_per_s=1e12, latency_s=0)),
        task=Quadratic(dimensions=1, noise=0.0, num_samples=10),
        batch_size=1,
        samples=num_updates * num_workers,
        eval_every=10**9,
        detail=False,
        lr=h,
        momentum=mu,
    )
    return max(abs(float(committed.after)) for committed in records[0].steps[-10:])


@pytest.mark.parametrize(
    ("name", "num_workers", "predict", "mu", "limit"),
    [
        ("sync", 2, None, 0.0, 2.0),
        ("sync", 2, None, 0.9, 3.8),
        ("abs", 2, None, 0.0, 1.0),
        ("abs", 2, None, 0.9, 0.10),
        ("pace", 4, "share", 0.0, 0.75),
        ("pace", 4, "share", 0.9, 0.57),
        ("pace", 2, "share", 0.0, 1.0),
        ("pace", 2, "share", 0.9, 0.69),
        ("pace", 4, "own", 0.0, 2.0),
        ("pace", 4, "own", 0.9, 3.8),
        ("acco", 2, None, 0.0, 2.0),
    ],
)
def test_the_largest_stable_learning_rate(name, num_workers, predict, mu, limit):
    """The matrix of the linear recursion says where the limit is, and how fast a run comes or goes on either side.

    The table's figures are cut off after the second place.
    """
    alpha = 1.0 if predict == "own" else 1 / num_workers
    exact = next(h for h in np.arange(0.0005, 4.2, 0.001) if radius(name, h, mu, alpha) > 1)
    assert limit <= exact < limit + 0.011
    parameters = {} if predict is None else {"predict": predict}
    for h, below in ((0.96 * exact, True), (1.04 * exact, False)):
        rate = radius(name, h, mu, alpha)
        assert (rate < 1) == below
        num_updates = math.ceil(math.log(1e3) / abs(math.log(rate)))  # a factor of a thousand, either way
        distance = final_distance(name, num_workers, h, mu, num_updates, **parameters)
        assert distance < 0.05 if below else distance > 20


# What must hold of Pace-SGD ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("predict", ["own", "share"])
@pytest.mark.parametrize(
    ("optimizer", "by_hand"),
    [
        (
            OptimizerSpec(lr=0.03, momentum=0.9, weight_decay=0.01, schedule=Schedule(shape="cosine")),
            lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=0.01),
        ),
        (
            OptimizerSpec(name="adamw", lr=0.05, weight_decay=0.1, schedule=Schedule(shape="cosine")),
            lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "adamw"],
)
def test_alone_it_is_the_optimizer_itself(predict, optimizer, by_hand):
    """The prediction is exact: what is under way is all there is."""
    task, num_updates = Quadratic(), 100
    alone = {"fleet": paces(1000, jitter=0.2), "samples": 8 * (num_updates - 1)}
    outcome, events = simulate(make_algorithm("pace", {"predict": predict}), task=task, optimizer=optimizer, **alone)
    assert len(updates(events)) == num_updates
    model = task.model()
    ours = by_hand(model.parameters())
    order, lr = Permutations(1000, 0, 0), ours.param_groups[0]["lr"]
    for t in range(num_updates):
        ours.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * t / (num_updates - 1)))
        ours.zero_grad()
        task.objective(model, *task.train_samples().pick(order.indices(8 * t, 8))).backward()
        ours.step()
    torch.testing.assert_close(outcome.model["at"], model.at.detach(), rtol=1e-4, atol=1e-6)
    # ABS-SGD is late even then.
    late_one, _ = simulate(make_algorithm("abs"), task=task, optimizer=optimizer, **alone)
    assert (late_one.model["at"] - model.at.detach()).abs().max() > 1e-3


@settings(max_examples=20)
@given(drawn_settings(), rules)
def test_without_prediction_it_is_abs(setting, rule):
    ours, events = engine(setting, "pace", predict="none", micro="fixed", lr_rule=rule)
    abs_, abs_events = engine(setting, "abs", lr_rule=rule)
    assert torch.equal(ours.model["at"], abs_.model["at"])
    assert events[1:] == abs_events[1:]


@settings(max_examples=30)
@given(drawn_settings(), st.integers(1, 100), sizings, st.sampled_from(["own", "share", "none"]))
def test_no_update_exceeds_its_cap_by_more_than_a_micro_batch_each(setting, max_batch, sizing, predict):
    _, events = engine(setting, "pace", max_batch=max_batch, micro=sizing, predict=predict)
    most = max_batch + setting.num_workers * setting.micro
    assert max(update.samples for update in updates(events)) <= most


def test_a_cap_matters_where_sums_are_slow_and_nowhere_else():
    slow = UNEVEN.with_ring(0.2)
    free, capped = (
        [update.samples for update in updates(engine(slow, "pace", **parameters)[1])][2:]
        for parameters in ({}, {"max_batch": 100})
    )
    assert min(free) > 500
    assert max(capped) <= 100
    assert min(capped) > 50

    quick = UNEVEN.with_ring(1e-4)
    outcomes = [engine(quick, "pace", **parameters) for parameters in ({}, {"max_batch": 1000})]
    assert torch.equal(outcomes[0][0].model["at"], outcomes[1][0].model["at"])
    assert outcomes[0][1][1:] == outcomes[1][1][1:]


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_warm_up_is_synchronous(warmup):
    _, events = engine(UNEVEN, "pace", warmup=warmup)
    staleness = [update.staleness for update in updates(events)]
    # The first batch after it is still computed at the parameters that it is applied to.
    assert staleness == [0] * (warmup + 1) + [1] * (len(staleness) - warmup - 1)
    computed = [event for event in events if isinstance(event, Compute)]
    for update in updates(events)[:warmup]:
        assert not any(event.t < update.t < event.until for event in computed)


def sizes_after(events: list[Event], time: float) -> dict[str, set[int]]:
    sizes: dict[str, set[int]] = {}
    for event in events:
        if isinstance(event, Compute) and event.t > time:
            sizes.setdefault(event.who, set()).add(event.samples)
    return sizes


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_micro_batches_take_equally_long(name):
    fleet = paces(4000, 2000, 1000, 500, jitter=0.0)
    _, events = simulate(make_algorithm(name, {"micro": "equal-time"}), fleet, batch_size=64, samples=8000, lr=0.01)
    expected = {"worker-0": {64}, "worker-1": {32}, "worker-2": {16}, "worker-3": {8}}
    assert sizes_after(events, 0.3) == expected
    seconds = {e.until - e.t for e in events if isinstance(e, Compute) and e.t > 0.3}
    assert max(seconds) == pytest.approx(min(seconds)) == pytest.approx(0.016)
    _, events = simulate(make_algorithm(name, {"micro": "fixed"}), fleet, batch_size=64, samples=8000, lr=0.01)
    assert sizes_after(events, 0.3) == {who: {64} for who in expected}


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_micro_batches_follow_a_change_of_pace(name):
    """Up to the tenth by which a size may be off, and a grain; four seconds are two hundred updates."""
    slow = Slowdown(from_s=2, until_s=1000, factor=4)
    fleet = Fleet(machine=(Machine(samples_per_s=4000), Machine(samples_per_s=4000, slowdown=(slow,))))
    _, events = simulate(
        make_algorithm(name, {"micro": "equal-time"}), fleet, batch_size=64, seconds=8.0, timing_only=True
    )
    before = [e for e in events if isinstance(e, Compute) and e.until < 2]
    assert {event.samples for event in before} == {64}
    after = sizes_after(events, 6)
    assert after["worker-0"] == {64}
    assert all(14 <= size <= 18 for size in after["worker-1"])


# Learning-rate rules -----------------------------------------------------------------------------------------------


class Noisy:
    """Gradients of workers whose per-sample gradients have a known mean and variance."""

    def __init__(self, mean: float, noise: float, sizes: Sequence[int], seed: int = 0) -> None:
        self._mean, self._noise, self._sizes = mean, noise, sizes
        self._generator = torch.Generator().manual_seed(seed)
        self.square = 4 * mean**2
        """m², of four dimensions."""
        self.variance = 4 * noise**2
        """s², of one sample."""

    def total(self, rule: LrRule) -> Gradient:
        """The sum over all workers, with what the rule wants to travel along."""
        parts = []
        for size in self._sizes:
            noise = torch.randn(4, generator=self._generator, dtype=torch.float64)
            parts.append(rule.note(Gradient(size * self._mean + math.sqrt(size) * self._noise * noise, size, (0,))))
        return union(parts)


@pytest.mark.parametrize("sizes", [(8, 8), (16, 4, 2, 1), (5, 0, 9)])
def test_the_estimates_of_adascale_are_unbiased(sizes):
    noisy = Noisy(mean=0.3, noise=1.7, sizes=sizes)
    variances, squares = [], []
    for _ in range(4000):
        rule = LrRule("adascale", 16)
        rule.scaling(noisy.total(rule))
        variances.append(rule._variance)
        squares.append(rule._square)
    for estimates, truth in ((variances, noisy.variance), (squares, noisy.square)):
        error = np.std(estimates) / math.sqrt(len(estimates))
        assert abs(np.mean(estimates) - truth) < 4 * error
        assert error < 0.15 * truth  # else anything would pass


def gain(rule: LrRule, noisy: Noisy, num_updates: int = 1) -> float:
    for _ in range(num_updates):
        scaling = rule.scaling(noisy.total(rule))
    return scaling.lr_scale


sizes_of_workers = st.lists(st.integers(1, 50), min_size=2, max_size=6)


@given(
    sizes=sizes_of_workers,
    reference=st.integers(1, 100),
    mean=st.floats(0, 10),
    noise=st.floats(0, 10),
    seed=st.integers(0, 100),
)
def test_the_gain_lies_between_one_and_the_scale(sizes, reference, mean, noise, seed):
    rule, scale = LrRule("adascale", reference), sum(sizes) / reference
    for _ in range(3):
        r = gain(rule, Noisy(mean, noise, sizes, seed))
        assert min(1, scale) * (1 - 1e-9) <= r <= max(1, scale) * (1 + 1e-9)
        assert rule.latest.advance == pytest.approx(min(sum(sizes), r * reference))


@given(sizes=sizes_of_workers, reference=st.integers(1, 100))
def test_without_noise_larger_batches_gain_nothing(sizes, reference):
    assert gain(LrRule("adascale", reference), Noisy(mean=1.0, noise=0.0, sizes=sizes)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("sizes", [(32, 32), (40, 10, 10, 4)])
def test_if_noise_dominates_the_gain_is_the_whole_scale(sizes):
    noisy = Noisy(mean=0.001, noise=1.0, sizes=sizes)
    gains = [gain(LrRule("adascale", 16), noisy, num_updates=10) for _ in range(200)]
    assert np.median(gains) == pytest.approx(4, rel=0.15)
    # Half and half: m² is as large as σ² = s²/16, and r = 2 / (1/4 + 1).
    even = Noisy(mean=0.25, noise=1.0, sizes=(16, 16, 16, 16))
    gains = [gain(LrRule("adascale", 16), even, num_updates=10) for _ in range(200)]
    assert np.mean(gains) == pytest.approx(1.6, rel=0.1)


@pytest.mark.parametrize(("rule", "scale"), [("constant", 1.0), ("linear", 40 / 16), ("sqrt", math.sqrt(40 / 16))])
def test_a_rule_follows_the_samples_of_an_update(rule, scale):
    scaling = LrRule(rule, 16).scaling(Noisy(1.0, 1.0, (30, 10)).total(LrRule(rule, 16)))
    assert scaling.lr_scale == pytest.approx(scale, rel=1e-12)
    assert scaling.advance is None  # the schedule goes on by the samples


@pytest.mark.parametrize("name", ["abs", "pace"])
def test_adascale_moves_the_schedule_by_what_was_gained(name):
    """r out of the workers' own gradients, by hand; the first ten estimates are averaged with equal weight."""
    algorithm, records = spied(name, lr_rule="adascale", micro="fixed")
    fleet = paces(4003, 2005, 1007, 1009, jitter=0.0, network=Network(latency_s=2e-3))
    spec = OptimizerSpec(lr=0.05, schedule=Schedule(shape="linear"))
    task = Quadratic(dimensions=7, num_samples=101, noise=5.0)
    simulate(algorithm, fleet, task=task, optimizer=spec, samples=1000, batch_size=8)
    steps = records[0].steps[:10]
    assert len(steps) == 10
    reference, position = 32, 0.0
    variances, squares, gains = [], [], []
    for t, committed in enumerate(steps):
        parts = [record.sums[t].gradient for record in records.values()]
        n = sum(part.samples for part in parts)
        a = sum(part.samples * float(part.mean.square().sum()) for part in parts)
        b = n * float((sum(part.total for part in parts) / n).square().sum())
        variances.append((a - b) / 3)
        squares.append((b - variances[-1]) / n)
        sigma, m = max(0.0, np.mean(variances)) / reference, max(0.0, np.mean(squares))
        r = (sigma + m) / (sigma * reference / n + m)
        gains.append(r)
        assert committed.lr_scale == pytest.approx(r, rel=1e-4)
        assert committed.advance == pytest.approx(r * reference, rel=1e-4)
        assert committed.lr == pytest.approx(0.05 * max(0.0, 1 - position / 1000), rel=1e-4, abs=1e-9)
        position += r * reference
        moved = committed.before - committed.after
        torch.testing.assert_close(moved, committed.lr * r * committed.gradient.mean, rtol=1e-3, atol=1e-6)
    assert max(gains) > 1.5  # else a gain of one would pass as well


# The bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "num_updates", "num_runs"), [(0.5, 20, 20), (0.5, 300, 2), (0.1, 20, 20), (0.1, 300, 2)]
)
def test_the_bound_on_the_mean_squared_gradient(lr, num_updates, num_runs):
    """avg E‖∇f‖² ≤ (8/5)[Δ/(ηT) + (ηLσ²/2)(1 + ηL)·avg(1/n_t)], for η ≤ 1/2L and μ = 0."""
    task = Quadratic(dimensions=2, noise=3.0)
    a = task.curvatures.double()
    inputs = task.train_samples().inputs.double()
    smoothness = float(a.max())
    variance = float((a * inputs).square().sum(1).mean())  # of one sample's gradient, the same everywhere
    gap = float((0.5 * a * torch.ones(2) ** 2).sum())  # f(w_0) − min f, since the samples' mean is 0
    squares, inverse_sizes = [], []
    for seed in range(num_runs):
        algorithm, records = spied("abs")
        fleet = paces(4003, 2005, 1007, jitter=0.3, network=Network(latency_s=1e-3))
        samples = num_updates * 12
        simulate(
            algorithm,
            fleet,
            task=task,
            samples=samples,
            batch_size=2,
            lr=lr,
            sampling="iid",
            seed=seed,
            eval_every=10**9,
        )
        for committed in records[0].steps:
            squares.append(float((a * committed.before).square().sum()))
            inverse_sizes.append(1 / committed.gradient.samples)
    num_steps = len(squares) / num_runs
    noise_term = lr * smoothness * variance / 2 * (1 + lr * smoothness) * np.mean(inverse_sizes)
    bound = 8 / 5 * (gap / (lr * num_steps) + noise_term)
    assert 0.1 * bound < np.mean(squares) <= bound
