"""DC-ASGD, staleness-aware async, backup workers, local SGD and DiLoCo: plain statements and special cases."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.plain import (
    OwnData,
    Result,
    Setting,
    Sgd,
    Step,
    assert_same,
    drawn_settings,
    engine,
    gradient_sum,
    jittery_fleets,
    jobs,
    loss,
    start,
    updates,
)
from tests.conformance.plain.server import ServerLoop
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, Slowdown, paces
from ownpace.tasks import Digits
from ownpace.testing import simulate

Move = Callable[[Tensor, Tensor], Tensor]
"""An inner optimizer: from parameters and a mean gradient to the next parameters."""

# Every push at once: DC-ASGD and staleness-aware -------------------------------------------------------------------


class Compensated(ServerLoop):
    """w ← w − η(g + λ g² ⊙ (w − w_bak(i))), with w_bak(i) what worker i computed at."""

    def __init__(self, setting: Setting, compensation: float) -> None:
        super().__init__(setting)
        self.compensation = compensation

    def arrived(self, now: float, rank: int) -> None:
        mean = self.sums[rank] / self.setting.batch_size
        mean = mean + self.compensation * mean * mean * (self.weights - self.held[rank])
        self.update(now, mean, self.setting.batch_size, staleness=len(self.steps) - self.versions[rank])
        self.answer(now, rank)


@settings(max_examples=25)
@given(drawn_settings(), st.sampled_from([0.0, 0.04, 0.5]))
def test_dc_async_moves_gradients_to_where_the_parameters_are(setting: Setting, compensation: float) -> None:
    outcome, events = engine(setting, "dc-async", {"compensation": compensation})
    assert_same(outcome, events, Compensated(setting, compensation).run())


def test_dc_async_with_and_without_compensation_differ() -> None:
    setting = Setting(paces=(1001.0, 997.0, 503.0))
    ends = [Compensated(setting, compensation).run().weights for compensation in (0.0, 0.5)]
    assert (ends[0] - ends[1]).abs().max() > 1e-3  # else the comparison above would show nothing


@settings(max_examples=15)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]))
def test_dc_async_without_compensation_is_async(fleet: Fleet, job: dict[str, float], momentum: float) -> None:
    job = {**job, "momentum": momentum, "weight_decay": 0.01}
    compensated, events = simulate(make_algorithm("dc-async", {"compensation": 0}), fleet, **job)
    plain, plain_events = simulate(make_algorithm("async"), fleet, **job)
    torch.testing.assert_close(compensated.model["at"], plain.model["at"], rtol=1e-4, atol=1e-5)
    assert updates(events) == updates(plain_events)


class StalenessAware(ServerLoop):
    """Async with η/τ, τ = 1 for a gradient of the newest parameters."""

    def arrived(self, now: float, rank: int) -> None:
        mean = self.sums[rank] / self.setting.batch_size
        staleness = len(self.steps) - self.versions[rank]
        self.update(now, mean, self.setting.batch_size, staleness=staleness, lr_scale=1 / (1 + staleness))
        self.answer(now, rank)


@settings(max_examples=25)
@given(drawn_settings())
def test_staleness_aware_is_async_with_the_learning_rate_over_staleness(setting: Setting) -> None:
    outcome, events = engine(setting, "staleness-aware", {})
    assert_same(outcome, events, StalenessAware(setting).run())


def test_staleness_aware_takes_the_same_time_as_async() -> None:
    fleet = paces(4000, 2000, 1000, jitter=0.3)
    aware, events = simulate(make_algorithm("staleness-aware"), fleet)
    plain, plain_events = simulate(make_algorithm("async"), fleet)
    assert updates(events) == updates(plain_events)
    assert (aware.model["at"] - plain.model["at"]).abs().max() > 1e-3


# Backup workers ----------------------------------------------------------------------------------------------------


class Backup(ServerLoop):
    """An update takes the first N − b gradients at the newest parameters; those at older ones are dropped."""

    def __init__(self, setting: Setting, backups: int) -> None:
        super().__init__(setting)
        self.needed = setting.num_workers - backups
        self.come: list[int] = []

    def arrived(self, now: float, rank: int) -> None:
        if self.versions[rank] < len(self.steps):
            self.answer(now, rank)
            return
        self.come.append(rank)
        if len(self.come) < self.needed:
            return
        total = torch.zeros_like(self.weights)
        for member in self.come:
            total += self.sums[member]
        samples = self.needed * self.setting.batch_size
        self.update(now, total / samples, samples, staleness=0)
        for member in sorted(self.come):
            self.answer(now, member)
        self.come = []


@settings(max_examples=30)
@given(st.data(), drawn_settings())
def test_backup_takes_the_first_that_come(data: st.DataObject, setting: Setting) -> None:
    backups = data.draw(st.integers(0, setting.num_workers - 1))
    outcome, events = engine(setting, "backup", {"backups": backups})
    assert_same(outcome, events, Backup(setting, backups).run())


@settings(max_examples=15)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]))
def test_backup_without_backups_is_sync(fleet: Fleet, job: dict[str, float], momentum: float) -> None:
    job = {**job, "momentum": momentum, "weight_decay": 0.01}
    backed, events = simulate(make_algorithm("backup", {"backups": 0}), fleet, **job)
    sync, sync_events = simulate(make_algorithm("sync"), fleet, **job)
    assert torch.equal(backed.model["at"], sync.model["at"])
    assert [(update.samples, update.staleness) for update in updates(events)] == [
        (update.samples, update.staleness) for update in updates(sync_events)
    ]


def test_backup_drops_what_a_slow_worker_brings_and_does_not_wait_for_it() -> None:
    fleet = Fleet(
        machine=(Machine(samples_per_s=1000, count=3), Machine(samples_per_s=131)),
        network=Network(bandwidth_bytes_per_s=1e12, latency_s=0.0),
    )
    _, events = simulate(make_algorithm("backup", {"backups": 1}), fleet, samples=2400)
    made = updates(events)
    assert [update.samples for update in made] == [3 * 8] * 100
    assert {update.staleness for update in made} == {0}
    assert [b.t - a.t for a, b in itertools.pairwise(made)] == pytest.approx([8 / 1000] * 99)
    computed = Counter(event.who for event in events if isinstance(event, Compute))
    assert [computed[f"worker-{rank}"] for rank in range(3)] == [100] * 3
    assert computed["worker-3"] == math.ceil(0.8 / (8 / 131))  # it worked all the time, for nothing


# Rounds of local steps: local SGD and DiLoCo -----------------------------------------------------------------------


def rounds(
    setting: Setting,
    steps_in: Callable[[int], list[int]],
    movers: list[Move],
    *,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
) -> Result:
    """Rounds of local steps, each worker with its own data and its own optimizer, and an outer Nesterov step.

    Args:
        setting: Everything else.
        steps_in: How many steps each worker takes in round 0, 1, …
        movers: Each worker's optimizer.
        outer_lr: ζ. With 1, and no momentum, the outer step leads to the mean of all models, weighted by samples.
        outer_momentum: μ.
    """
    data = OwnData(setting)
    weights, momentum, now = start(), torch.zeros_like(start()), 0.0
    made: list[Step] = []
    while sum(step.samples for step in made) < setting.samples:
        steps = steps_in(len(made))
        whole = sum(steps) * setting.batch_size
        difference = torch.zeros_like(weights)
        for rank, (count, move) in enumerate(zip(steps, movers, strict=True)):
            own = weights
            for _ in range(count):
                own = move(own, gradient_sum(own, data.take(rank, setting.batch_size)) / setting.batch_size)
            difference += count * setting.batch_size / whole * (weights - own)
        momentum = outer_momentum * momentum + difference
        weights = weights - outer_lr * (difference + outer_momentum * momentum)
        now += max(count * setting.batch_size / pace for count, pace in zip(steps, setting.paces, strict=True))
        now += setting.ring_seconds
        made.append(Step(now, whole, 0, loss(weights)))
    return Result(weights, made)


def sgd(setting: Setting) -> list[Move]:
    return [Sgd(setting).moved for _ in setting.paces]


@settings(max_examples=25)
@given(drawn_settings(), st.integers(1, 12))
def test_local_sgd_averages_after_h_steps(setting: Setting, steps: int) -> None:
    outcome, events = engine(setting, "local", {"steps": steps}, sampling="shards")
    assert_same(outcome, events, rounds(setting, lambda _: [steps] * setting.num_workers, sgd(setting)))


@settings(max_examples=15)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.1]))
def test_local_sgd_of_one_step_is_sync(fleet: Fleet, job: dict[str, float], momentum: float, decay: float) -> None:
    """With momentum, too: the mean of the workers' momenta is the momentum of the mean."""
    job = {**job, "momentum": momentum, "weight_decay": decay}
    local, events = simulate(make_algorithm("local", {"steps": 1}), fleet, **job)
    sync, sync_events = simulate(make_algorithm("sync"), fleet, **job)
    torch.testing.assert_close(local.model["at"], sync.model["at"], rtol=1e-4, atol=1e-5)
    assert [(update.t, update.samples) for update in updates(events)] == [
        (update.t, update.samples) for update in updates(sync_events)
    ]


@settings(max_examples=15)
@given(jittery_fleets, jobs, st.integers(1, 12), st.sampled_from([0.0, 0.9]))
def test_diloco_with_a_plain_outer_step_is_local_sgd(
    fleet: Fleet, job: dict[str, float], steps: int, momentum: float
) -> None:
    parameters = {"by_pace": False, "outer_lr": 1, "outer_momentum": 0, "steps": steps}
    diloco, events = simulate(make_algorithm("diloco", parameters), fleet, momentum=momentum, **job)
    local, local_events = simulate(make_algorithm("local", {"steps": steps}), fleet, momentum=momentum, **job)
    assert torch.equal(diloco.model["at"], local.model["at"])
    assert updates(events) == updates(local_events)


outer_steps = st.fixed_dictionaries(
    {"outer_lr": st.floats(0.3, 1.0), "outer_momentum": st.sampled_from([0.0, 0.5, 0.9])}
)


@settings(max_examples=25)
@given(drawn_settings(), st.integers(1, 10), outer_steps)
def test_diloco_takes_an_outer_nesterov_step(setting: Setting, steps: int, outer: dict[str, float]) -> None:
    outcome, events = engine(setting, "diloco", {"by_pace": False, "steps": steps, **outer}, sampling="shards")
    assert_same(outcome, events, rounds(setting, lambda _: [steps] * setting.num_workers, sgd(setting), **outer))


@settings(max_examples=30)
@given(drawn_settings(), st.integers(1, 16), outer_steps)
def test_diloco_by_pace_takes_as_many_steps_as_time_allows(
    setting: Setting, steps: int, outer: dict[str, float]
) -> None:
    """H_i = max(1, ⌊v_i / v_max · H⌋), after one step that shows who is how fast; weights n_i / Σn."""

    def steps_in(number: int) -> list[int]:
        if number == 0:
            return [1] * setting.num_workers
        return [max(1, math.floor(pace / max(setting.paces) * steps)) for pace in setting.paces]

    outcome, events = engine(setting, "diloco", {"steps": steps, **outer}, sampling="shards")
    assert_same(outcome, events, rounds(setting, steps_in, sgd(setting), **outer))


def steps_per_round(events: list[Event], num_workers: int) -> list[list[int]]:
    """Of each round: how many batches every worker computed, by rank."""
    counts = Counter((event.version, event.who) for event in events if isinstance(event, Compute))
    return [[counts[number, f"worker-{rank}"] for rank in range(num_workers)] for number in range(len(updates(events)))]


@pytest.mark.parametrize(
    ("speeds", "steps", "expected"),
    [
        ((1000, 500, 250), 8, [8, 4, 2]),
        ((3000, 1000), 9, [9, 3]),
        ((700, 700, 700), 5, [5, 5, 5]),
        ((1000, 749), 4, [4, 2]),
        ((1000, 10), 32, [32, 1]),
    ],
)
def test_diloco_rounds_steps_down_and_whole_ratios_exactly(
    speeds: tuple[int, ...], steps: int, expected: list[int]
) -> None:
    fleet = paces(*speeds, jitter=0.0)
    _, events = simulate(make_algorithm("diloco", {"steps": steps}), fleet, samples=20_000, timing_only=True)
    first, *later = steps_per_round(events, len(speeds))
    assert first == [1] * len(speeds)
    assert len(later) > 10
    assert later == [expected] * len(later)


def test_diloco_follows_a_change_of_pace() -> None:
    slow = Slowdown(from_s=1, until_s=1e6, factor=4)
    fleet = Fleet(machine=(Machine(samples_per_s=1000), Machine(samples_per_s=1000, slowdown=(slow,))))
    algorithm = make_algorithm("diloco", {"steps": 8, "smoothing": 1})
    _, events = simulate(algorithm, fleet, samples=None, seconds=3.0, timing_only=True)
    counts = steps_per_round(events, 2)
    assert counts[1] == [8, 8]
    assert counts[-1] == [8, 2]


def adamw(setting: Setting) -> Move:
    """AdamW as its paper has it, with torch's defaults."""
    first, second, number = torch.zeros_like(start()), torch.zeros_like(start()), 0

    def moved(weights: Tensor, gradient: Tensor) -> Tensor:
        nonlocal first, second, number
        number += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient
        weights = weights * (1 - setting.lr * setting.weight_decay)
        scale = (second / (1 - 0.999**number)).sqrt() + 1e-8
        return weights - setting.lr * first / (1 - 0.9**number) / scale

    return moved


@pytest.mark.parametrize(
    ("name", "parameters"), [("local", {}), ("diloco", {"outer_lr": 0.7, "outer_momentum": 0.9, "by_pace": False})]
)
def test_inner_adamw_keeps_its_state_from_round_to_round(name: str, parameters: dict[str, Any]) -> None:
    setting = Setting(paces=(1000.0, 900.0, 400.0), lr=0.01, weight_decay=0.1, samples=600)
    optimizer = OptimizerSpec(name="adamw", lr=0.01, weight_decay=0.1)
    outcome, events = engine(setting, name, {**parameters, "steps": 6}, sampling="shards", optimizer=optimizer)
    outer = {key: value for key, value in parameters.items() if key.startswith("outer")}
    assert_same(outcome, events, rounds(setting, lambda _: [6] * 3, [adamw(setting) for _ in range(3)], **outer))


# Several servers ---------------------------------------------------------------------------------------------------


def on_servers(name: str, *bandwidths: float) -> tuple[list[tuple[int, int]], dict[str, Tensor]]:
    """Three workers with own data, whose updates are never closer than 0.05 s: much more than transfers take.

    Returns what each server's updates were, if all agree, and the model.
    """
    fleet = Fleet(
        machine=tuple(Machine(samples_per_s=8 / batch_s) for batch_s in (1.0, 1.61, 2.37)),
        network=Network(bandwidth_bytes_per_s=1e9, latency_s=1e-5),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=bandwidth) for bandwidth in bandwidths),
    )
    outcome, events = simulate(make_algorithm(name), fleet, task=Digits(), samples=100, momentum=0.5, sampling="shards")
    assert outcome.error is None
    seen = [
        [(update.samples, update.staleness) for update in updates(events) if update.who == f"server-{server}"]
        for server in range(len(bandwidths))
    ]
    assert all(made == seen[0] for made in seen)
    return seen[0], outcome.model


@pytest.mark.parametrize("name", ["dc-async", "staleness-aware", "backup"])
@pytest.mark.parametrize("bandwidths", [(1e8, 1e8), (1e7, 1e9, 1e8)])
def test_several_servers_do_what_one_does(name: str, bandwidths: tuple[float, ...]) -> None:
    made, model = on_servers(name, *bandwidths)
    expected, reference = on_servers(name, 1e9)
    assert made == expected
    assert len(made) > 5
    for key, tensor in model.items():
        torch.testing.assert_close(tensor, reference[key], rtol=0, atol=1e-6)
