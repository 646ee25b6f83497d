"""Pace-SGD against a plain statement of it, and what must hold of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import Draws, Model, Setting, assert_same, engine, gradient_sum, updates
from tests.conformance.plain.late import Bound, delayed
from tests.conformance.plain.model import added
from tests.conformance.plain.ring import recorded
from tests.conformance.plain.spy import watched
from tests.conformance.plain.strategies import jittery_fleets, jobs, late_settings, rules, sizings, slacks

from ownpace import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.schedule import Schedule
from ownpace.fleet import paces
from ownpace.tasks import Quadratic
from ownpace.testing import simulate

UNEVEN = Setting(
    paces=(4003.0, 2005.0, 1007.0, 1009.0), batch_size=8, samples=3600, lr=0.02, momentum=0.5, latency=2e-3
)


@settings(max_examples=60)
@given(late_settings, st.sampled_from(["own", "share"]), sizings, rules, st.integers(0, 3))
def test_pace_computes_where_the_optimizer_is_about_to_be(setting, predict, sizing, rule, warmup):
    outcome, events = engine(setting, "pace", predict=predict, micro=sizing, lr_rule=rule, warmup=warmup, max_batch=0)
    micro = None if sizing == "fixed" else recorded(events, setting)
    expected = delayed(setting, micro, predict=predict, rule=rule, warmup=warmup)
    assume(len(expected.steps) != warmup)  # see test_a_budget_that_is_spent_with_the_warm_up_is_spent
    assert_same(outcome, events, expected)


@settings(max_examples=60)
@given(late_settings, st.none() | slacks, st.sampled_from(["own", "none"]), rules, st.integers(0, 2))
def test_a_capped_update_has_each_workers_part_at_most(setting, slack, predict, rule, warmup):
    most = 2 * setting.batch_size * setting.num_workers if slack is None else setting.num_workers + slack
    outcome, events = engine(
        setting,
        "pace",
        micro="fixed",
        predict=predict,
        lr_rule=rule,
        warmup=warmup,
        max_batch=None if slack is None else most,
    )
    expected = delayed(setting, predict=predict, rule=rule, warmup=warmup, bound=Bound(most))
    assume(len(expected.steps) != warmup)
    assert_same(outcome, events, expected)


@settings(max_examples=40)
@given(late_settings, slacks, st.sampled_from(["own", "share"]), sizings, rules, st.integers(0, 2))
def test_an_update_of_prescribed_size_has_each_workers_part(setting, slack, predict, sizing, rule, warmup):
    target = setting.num_workers + slack
    outcome, events = engine(
        setting, "pace", micro=sizing, predict=predict, lr_rule=rule, warmup=warmup, target_batch=target
    )
    expected = delayed(setting, predict=predict, rule=rule, warmup=warmup, bound=Bound(target, exact=True))
    assume(len(expected.steps) != warmup)
    assert_same(outcome, events, expected)
    assert {update.samples for update in updates(events)} == {target}


def test_a_budget_that_is_spent_with_the_warm_up_is_spent():
    _, events = engine(Setting(paces=(1001.0, 1003.0), samples=40, lr=0.03), "pace", warmup=5)
    assert [update.total_samples for update in updates(events)] == [8, 16, 24, 32, 40]


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
    alone: dict[str, Any] = {"fleet": paces(1000, jitter=0.2), "samples": 8 * (num_updates - 1)}
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
@given(late_settings, rules)
def test_without_prediction_it_is_abs(setting, rule):
    ours, events = engine(setting, "pace", predict="none", micro="fixed", lr_rule=rule, max_batch=0)
    abs_, abs_events = engine(setting, "abs", lr_rule=rule)
    assert torch.equal(ours.model["at"], abs_.model["at"])
    assert events[1:] == abs_events[1:]


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
        weighted = added(size / sum(row) * mean for size, mean in zip(row, means, strict=True))
        model.step(weighted, sum(row))
    torch.testing.assert_close(records[0].steps[-1].after.double(), model.weights, rtol=1e-4, atol=1e-5)


any_latency = st.sampled_from([0.0, 1e-5, 1e-3, 0.05, 1.0, 30.0])
varying = st.sampled_from(["abs", "acco", "pace"])


@settings(max_examples=60)
@given(jittery_fleets, any_latency, jobs, st.none() | slacks, sizings, varying, st.integers(0, 2))
def test_no_update_exceeds_its_cap_on_any_fleet_and_network(fleet, latency, job, slack, sizing, name, warmup):
    num_workers = len(fleet.workers)
    most = 2 * job["batch_size"] * num_workers if slack is None else 2 * num_workers + slack
    parameters = {"micro": sizing, "max_batch": None if slack is None else most}
    if name == "pace":
        parameters["warmup"] = warmup
    fleet = replace(fleet, network=replace(fleet.network, latency_s=latency))
    _, events = simulate(make_algorithm(name, parameters), fleet, timing_only=True, **job)
    made = updates(events)
    assert max(update.samples for update in made) <= most
    computed = sum(event.samples for event in events if isinstance(event, Compute))
    assert computed == sum(update.samples for update in made) >= job["samples"]


@settings(max_examples=60)
@given(jittery_fleets, any_latency, jobs, slacks, sizings, varying)
def test_updates_have_the_prescribed_size_on_any_fleet_and_network(fleet, latency, job, slack, sizing, name):
    target = 2 * len(fleet.workers) + slack
    fleet = replace(fleet, network=replace(fleet.network, latency_s=latency))
    algorithm = make_algorithm(name, {"micro": sizing, "target_batch": target})
    _, events = simulate(algorithm, fleet, timing_only=True, **job)
    made = updates(events)
    # ACCO's last update is of the half that was under way.
    assert {update.samples for update in (made[:-1] if name == "acco" else made)} <= {target}
    computed = sum(event.samples for event in events if isinstance(event, Compute))
    assert computed == sum(update.samples for update in made) >= job["samples"]


def test_a_cap_matters_where_sums_are_slow_and_nowhere_else():
    slow = UNEVEN.with_ring(0.2)
    free, usual, capped = (
        [update.samples for update in updates(engine(slow, "pace", parameters)[1])][2:]
        for parameters in ({"max_batch": 0}, {}, {"max_batch": 100})
    )
    assert min(free) > 500
    assert 50 < min(usual) <= max(usual) <= 64
    assert 75 < min(capped) <= max(capped) <= 100

    quick = UNEVEN.with_ring(1e-4)
    outcomes = [engine(quick, "pace", parameters) for parameters in ({"max_batch": 0}, {"max_batch": 1000})]
    assert torch.equal(outcomes[0][0].model["at"], outcomes[1][0].model["at"])
    assert outcomes[0][1][1:] == outcomes[1][1][1:]


@pytest.mark.parametrize("name", ["max_batch", "target_batch"])
def test_a_bound_leaves_every_worker_a_sample(name):
    for algorithm, least in (("pace", 4), ("acco", 8)):
        with pytest.raises(InputError, match=f"{name} is {least - 1}, .* use at least {least}"):
            engine(UNEVEN, algorithm, {name: least - 1})
        engine(UNEVEN, algorithm, {name: least})
    with pytest.raises(InputError, match="target_batch is 9, more than the max_batch of 8"):
        make_algorithm("pace", {"target_batch": 9, "max_batch": 8})


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_warm_up_is_synchronous(warmup):
    _, events = engine(UNEVEN, "pace", warmup=warmup)
    staleness = [update.staleness for update in updates(events)]
    # The first batch after it is still computed at the parameters that it is applied to.
    assert staleness == [0] * (warmup + 1) + [1] * (len(staleness) - warmup - 1)
    computed = [event for event in events if isinstance(event, Compute)]
    for update in updates(events)[:warmup]:
        assert not any(event.t < update.t < event.until for event in computed)
