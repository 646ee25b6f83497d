"""Stride against a plain statement of it, and what must hold of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.plain import Setting, assert_same, engine, updates
from tests.conformance.plain.overlapped import anchored, decoupled
from tests.conformance.plain.strategies import late_settings
from tests.conformance.plain.stride import for_long_rounds, strides

from ownpace import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute
from ownpace.core.contract.roles import Worker
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.fleet import Fleet, Machine, Network, Slowdown, paces
from ownpace.report import summarize
from ownpace.tasks import Quadratic
from ownpace.testing import simulate
from ownpace.testing.runs import with_worker

STOP = Slowdown(from_s=0.5, until_s=1.5, factor=100.0)
outer_steps = st.sampled_from([{}, {"outer_lr": 0.7}, {"outer_lr": 0.8, "outer_momentum": 0.5}])


@settings(max_examples=60)
@given(
    late_settings,
    st.integers(1, 6),
    st.none() | st.integers(0, 120),
    st.integers(0, 3),
    outer_steps,
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([{}, {}, {"pull": 0.4}]),
    st.booleans(),
)
def test_progress_is_summed_while_the_next_is_made(
    setting: Setting,
    steps: int,
    slack: int | None,
    warmup: int,
    outer: dict[str, float],
    max_wait: float,
    pull: dict[str, float],
    equal_time: bool,
) -> None:
    setting = replace(setting, micro_batch=None)
    bound = {} if slack is None else {"max_batch": setting.num_workers + slack}
    settings_ = {
        "steps": steps,
        "warmup": warmup,
        "batch": "equal-time" if equal_time else "fixed",
        "smoothing": 1.0,
        "max_wait": max_wait,
        **bound,
        **outer,
        **pull,
    }
    outcome, events = engine(setting, "stride", settings_, sampling="shards")
    most = bound.get("max_batch")
    plain = strides(
        setting, steps, max_batch=most, warmup=warmup, max_wait=max_wait, equal_time=equal_time, **outer, **pull
    )
    assert_same(outcome, events, plain)


@settings(max_examples=30)
@given(late_settings, st.integers(1, 6))
def test_cocod_adds_the_progress_since_to_the_mean_of_the_last_models(setting: Setting, steps: int) -> None:
    setting = replace(setting, micro_batch=None)
    outcome, events = engine(setting, "cocod", steps=steps, smoothing=1.0, sampling="shards")
    assert_same(outcome, events, decoupled(setting, steps))


@settings(max_examples=30)
@given(late_settings, st.integers(1, 6), st.sampled_from([0.3, 0.6, 1.0]), st.sampled_from([0.0, 0.7]))
def test_overlap_local_pulls_models_back_to_an_anchor(
    setting: Setting, steps: int, pullback: float, momentum: float
) -> None:
    setting = replace(setting, micro_batch=None)
    parameters = {"steps": steps, "pullback": pullback, "anchor_momentum": momentum}
    outcome, events = engine(setting, "overlap-local", parameters, sampling="shards")
    assert_same(outcome, events, anchored(setting, steps, pullback, momentum))


class Accountant:
    """A worker as it is, but for notes on where its steps led and what it handed in."""

    def __init__(self, me: Worker) -> None:
        self._me = me
        self.stepped: list[torch.Tensor] = []
        self.handed: list[tuple[torch.Tensor, int]] = []
        self.lengths: list[int] = []
        self.committed: list[torch.Tensor] = []
        self.at: list[torch.Tensor] = []
        """Where it went on from after each sum."""
        self.began_at: list[torch.Tensor] = []
        """The same without the steps of the round so far."""
        self.began = me.parameters.values.double()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    def local_step(self, gradient: Any, **how: float) -> None:
        before = self._me.parameters.values.double()
        self._me.local_step(gradient, **how)
        self.stepped.append(before - self._me.parameters.values.double())

    def all_reduce(self, gradient: Any) -> Any:
        self.handed.append((gradient.total.double(), gradient.samples))
        self.lengths.append(len(self.stepped) - sum(self.lengths))
        return self._me.all_reduce(gradient)

    def commit(self, values: torch.Tensor, work: Any, *, ahead: torch.Tensor | None = None) -> None:
        self._me.commit(values, work, ahead=ahead)
        self.committed.append(values.double())
        own = self.stepped[sum(self.lengths) :]
        self.at.append(self._me.parameters.values.double())
        self.began_at.append(self.at[-1] + torch.stack([torch.zeros_like(self.began), *own]).sum(0))


@settings(max_examples=25)
@given(
    st.lists(st.integers(200, 5000), min_size=1, max_size=5),
    st.sampled_from([1e4, 1e5, 1e8]),
    st.integers(1, 4),
    st.sampled_from(["fixed", "equal-time"]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, None]),
)
def test_no_progress_is_lost_or_counted_twice(
    speeds: list[int], bandwidth: float, steps: int, batch: str, momentum: float, outer_momentum: float | None
) -> None:
    accountants: list[Accountant] = []
    algorithm = make_algorithm("stride", {"steps": steps, "batch": batch, "outer_momentum": outer_momentum})

    async def worker(me: Worker) -> None:
        noted = Accountant(me)
        accountants.append(noted)
        await algorithm.worker(noted)  # type: ignore[arg-type]  # a worker but for its notes
        assert torch.equal(me.parameters.values.double(), noted.committed[-1])

    fleet = paces(*speeds, jitter=0.3, network=Network(bandwidth_bytes_per_s=bandwidth, latency_s=1e-3))
    outcome, _ = simulate(with_worker(algorithm, worker), fleet, samples=1500, lr=0.02, momentum=momentum)
    assert outcome.error is None
    for each in accountants:
        # All that it did alone was handed in, in some sum.
        made = torch.stack([part / max(1, samples) for part, samples in each.handed]).sum(0)
        torch.testing.assert_close(made, torch.stack(each.stepped).sum(0), rtol=1e-4, atol=1e-5)
        assert all(torch.equal(one, other) for one, other in zip(each.committed, accountants[0].committed, strict=True))
        assert all(samples for _, samples in each.handed[:-1])  # no round but the last is empty
    x = accountants[0].began
    buffer = torch.zeros_like(x)
    for number, committed in enumerate(accountants[0].committed):
        parts = [each.handed[number] for each in accountants]
        whole = sum(samples for _, samples in parts)
        if not whole:
            continue
        mean = torch.stack([part for part, _ in parts]).sum(0) / whole
        mu = outer_momentum
        if mu is None:
            lengths = [each.lengths[number] for each in accountants]
            mu = for_long_rounds([samples for _, samples in parts], lengths)
        buffer = (mu * buffer + mean) * (mu > 0)
        x = x - (mean + mu * buffer)
        torch.testing.assert_close(committed, x, rtol=1e-4, atol=1e-5)


class Misled(Accountant):
    """An accountant whose first step goes far astray, on one worker."""

    def local_step(self, gradient: Any, **how: float) -> None:
        super().local_step(gradient, lr_scale=1.0 if self.stepped or self._me.rank else 20.0, **how)


def misled(settings: dict[str, Any], lr: float, noise: float) -> list[Misled]:
    """Two workers alike, in rounds of 40 steps, on a parabola with its minimum at 0."""
    accountants: list[Misled] = []
    algorithm = make_algorithm("stride", {"max_batch": 800, **settings})

    async def worker(me: Worker) -> None:
        accountants.append(Misled(me))
        await algorithm.worker(accountants[-1])  # type: ignore[arg-type]  # a worker but for its notes

    fleet = paces(1000, 1000, jitter=0.0, network=Network(latency_s=1.0))
    job = {"samples": 16_000, "batch_size": 10, "lr": lr, "task": Quadratic(dimensions=1, noise=noise)}
    simulate(with_worker(algorithm, worker), fleet, **job)
    assert accountants[0].lengths[-4:-1] == [40] * 3
    return accountants


@pytest.mark.parametrize(("pull", "left"), [(0.5, 0.5), (0.7, 0.7), (1.0, 1.0), (None, 0.7 + 1.2 / 40)])
def test_what_steps_have_mended_is_left_with_the_part_that_is_taken_back(pull: float | None, left: float) -> None:
    """On the other side. Where all is taken back, it swings on for ever."""
    one = misled({"pull": pull, "outer_momentum": 0.0}, lr=0.6, noise=0.0)[0]
    off = [float(at - x) for at, x in zip(one.at, one.committed, strict=True)][5:-1]
    ratios = [later / sooner for sooner, later in itertools.pairwise(off)]
    assert len(ratios) > 8
    assert ratios == pytest.approx([-left] * len(ratios), rel=1e-3)


@pytest.mark.parametrize("outer", [{}, {"outer_lr": 0.7}, {"outer_momentum": 0.9}])
def test_workers_alike_are_at_the_global_model_on_average(outer: dict[str, float]) -> None:
    """But for what they have not handed in: the outer step moves all alike."""
    one, other = misled({"pull": 0.6, **outer}, lr=0.02, noise=1.0)
    apart = [float((here - there).abs()) for here, there in zip(one.began_at, other.began_at, strict=True)]
    assert min(apart[3:-1]) > 1e-3
    for here, there, x in zip(one.began_at, other.began_at, one.committed, strict=True):
        torch.testing.assert_close((here + there) / 2, x, rtol=1e-4, atol=1e-5)


def test_where_rounds_are_short_all_is_taken_back() -> None:
    at = {}
    for latency_s in (1e-6, 0.1):
        fleet = paces(1000, 1000, 1000, jitter=0.3, network=Network(latency_s=latency_s))
        for pull in (None, 1.0):
            outcome, _ = simulate(make_algorithm("stride", {"pull": pull}), fleet, samples=2000, lr=0.02)
            at[latency_s, pull] = outcome.model["at"]
    assert torch.equal(at[1e-6, None], at[1e-6, 1.0])
    assert not torch.equal(at[0.1, None], at[0.1, 1.0])


@pytest.mark.parametrize("outer", [{}, {"outer_lr": 0.7, "outer_momentum": 0.9}])
def test_where_rounds_wait_it_is_diloco(outer: dict[str, float]) -> None:
    """And so, with a plain outer step and machines of equal pace, local SGD."""
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0)
    job = {"samples": 3000, "lr": 0.02, "momentum": 0.9, "sampling": "shards"}
    plain = {"outer_lr": 1.0, "outer_momentum": 0.0, **outer}
    waiting = {"steps": 8, "batch": "fixed", "warmup": 10**6, **plain}
    stride, events = simulate(make_algorithm("stride", waiting), fleet, **job)
    diloco, others = simulate(make_algorithm("diloco", {"steps": 8, **plain}), fleet, **job)
    assert [(update.t, update.samples, update.staleness) for update in updates(others)] == [
        (update.t, update.samples, update.staleness) for update in updates(events)
    ][: len(updates(others))]
    assert torch.equal(stride.model["at"], diloco.model["at"])


def test_alone_it_is_the_optimizer_itself() -> None:
    task, spec = Quadratic(), OptimizerSpec(name="adamw", lr=0.05, weight_decay=0.1)
    outcome, events = simulate(make_algorithm("stride"), paces(1000, jitter=0.2), task=task, optimizer=spec)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    order = Permutations(1000, 0, 0)
    for number in range(updates(events)[-1].total_samples // 8):
        optimizer.zero_grad()
        task.objective(model, *task.train_samples().pick(order.indices(8 * number, 8))).backward()
        optimizer.step()
    torch.testing.assert_close(outcome.model["at"], model.at.detach(), rtol=1e-4, atol=1e-5)


def test_nobody_waits_however_long_a_sum_takes() -> None:
    """Once that is known. Nor are rounds longer than it takes to hide the sum and the longest step."""
    network = Network(bandwidth_bytes_per_s=1e9, latency_s=0.02)  # of a ring of four: 0.12 s
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0, network=network)
    _, events = simulate(make_algorithm("stride"), fleet, samples=40_000, timing_only=True)
    made = updates(events)
    begin, end = made[2].t, made[-2].t
    for rank in range(4):
        spans = [event for event in events if isinstance(event, Compute) and event.who == f"worker-{rank}"]
        busy = sum(min(span.until, end) - span.t for span in spans if begin <= span.t < end)
        assert busy > 0.998 * (end - begin)
    lengths = [later.t - earlier.t for earlier, later in itertools.pairwise(made[3:-1])]
    assert min(lengths) > 0.12
    assert max(lengths) < 0.12 + 2 * 8 / 1000
    # There is time for steps of whole batches on all of them.
    assert {span.samples for span in events if isinstance(span, Compute) and span.t > 2} == {8}


def test_where_waiting_is_cheap_all_wait() -> None:
    """From the fifth sum on; and nobody does where a tenth of a round would be lost."""
    for ring_s, most, waits in ((0.001, 0.1, True), (0.003, 0.1, False), (0.003, 0.2, True), (0.001, 0.0, False)):
        network = Network(bandwidth_bytes_per_s=1e9, latency_s=ring_s / 6)
        fleet = paces(4000, 2000, 1000, 1000, jitter=0.0, network=network)  # a round takes 16 ms
        _, events = simulate(
            make_algorithm("stride", {"max_wait": most}), fleet, samples=20_000, batch_size=32, timing_only=True
        )
        late = [update.staleness for update in updates(events)]
        assert late[1:5] == [1] * 4
        assert set(late[9:150]) == ({0} if waits else {1})
        assert summarize(events).share_of_limit == pytest.approx(0.016 / (0.016 + ring_s * waits), abs=0.015)


@pytest.mark.parametrize("ring_s", [0.03, 0.3])
def test_where_sums_are_slow_nobody_ever_tries_to_wait(ring_s: float) -> None:
    fleet = paces(4000, 2000, 1000, 1000, network=Network(bandwidth_bytes_per_s=1e9, latency_s=ring_s / 6))
    job = {"samples": 30_000, "batch_size": 16, "timing_only": True}
    _, events = simulate(make_algorithm("stride"), fleet, **job)
    _, never = simulate(make_algorithm("stride", {"max_wait": 0.0}), fleet, **job)
    assert len(updates(never)) > 10
    assert [(update.t, update.samples) for update in updates(events)] == [
        (update.t, update.samples) for update in updates(never)
    ]


def test_where_sums_are_fast_steps_take_all_workers_equally_long() -> None:
    fleet = paces(8000, 4000, 2000, 1000, jitter=0.0, network=Network(bandwidth_bytes_per_s=1e9, latency_s=1e-6))
    _, events = simulate(make_algorithm("stride"), fleet, samples=9000, batch_size=16, timing_only=True)
    sizes = {event.who: event.samples for event in events if isinstance(event, Compute)}
    assert sizes == {"worker-0": 16, "worker-1": 8, "worker-2": 4, "worker-3": 2}
    assert {update.samples for update in updates(events)[10:-2]} == {2 * 30}


@pytest.mark.parametrize(
    ("network", "most"), [(Network(), 30), (Network(latency_s=0.1), 30), (Network(latency_s=0.1), 480)]
)
def test_no_round_has_more_samples_than_the_bound(network: Network, most: int) -> None:
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0, network=network)
    _, events = simulate(make_algorithm("stride", {"max_batch": most}), fleet, samples=9000, timing_only=True)
    largest = max(update.samples for update in updates(events)[2:])
    assert largest <= most
    # Where a sum takes longer, all of it is used, up to whole steps.
    assert largest > most - 4 * 8 or not network.latency_s


def test_nobody_runs_on_alone_because_one_sum_is_late() -> None:
    """One machine pauses: before, the others made a hundred steps meanwhile."""
    machines = [Machine(samples_per_s=1000), Machine(samples_per_s=1000, slowdown=(STOP,))]
    fleet = Fleet(machine=tuple(machines))
    _, events = simulate(make_algorithm("stride"), fleet, samples=4000, timing_only=True)
    made = updates(events)
    assert max(later.t - earlier.t for earlier, later in itertools.pairwise(made)) > 0.5
    assert max(update.samples for update in made) <= 2 * 2 * 2 * 8


def test_longer_rounds_get_replicas_further_apart() -> None:
    fleet = paces(1000, 1000, jitter=0.1, network=Network(latency_s=0.2))
    spreads = []
    for most in (32, 512):
        _, events = simulate(make_algorithm("stride", {"max_batch": most}), fleet, samples=4000, lr=0.02)
        spread = summarize(events).spread
        assert spread is not None
        assert 0 < spread.mean < spread.max
        spreads.append(spread.mean)
    assert spreads[1] > 1.5 * spreads[0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_batch": -1}, ["max_batch is -1", "at least 0"]),
        ({"steps": 0}, ["steps"]),
        ({"max_wait": 1.0}, ["max_wait is 1.0", "below 1"]),
        ({"outer_momentum": 1.0}, ["outer_momentum", "below 1"]),
        ({"pull": 0.0}, ["pull is 0.0", "above 0"]),
        ({"pull": 1.1}, ["pull is 1.1", "at most 1"]),
    ],
)
def test_says_what_cannot_be(parameters: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        make_algorithm("stride", parameters)
    assert all(word in str(raised.value) for word in words)
