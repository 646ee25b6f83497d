"""WP-SGD: its weights, a plain statement of its rounds, and where weighting helps and where it does not."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import (
    AWKWARD,
    Draws,
    OwnData,
    Result,
    Setting,
    Sgd,
    Step,
    assert_same,
    engine,
    gradient_sum,
    loss,
    start,
    updates,
)

from ownpace import make_algorithm
from ownpace.algorithms.wp import RoundReports, WeightRule, WpSgd
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute
from ownpace.fleet import Fleet, Machine, Network
from ownpace.testing import simulate

RULES: tuple[WeightRule, ...] = ("exp", "exp2", "count", "equal", "optimal")

# The weights -------------------------------------------------------------------------------------------------------

counts = st.lists(st.integers(1, 10_000), min_size=1, max_size=10)
rules = st.sampled_from(RULES)


@given(rules, counts, st.floats(1e-6, 0.5), st.floats(1e-3, 1.0))
def test_weights_are_positive_sum_to_1_and_grow_with_progress(
    rule: WeightRule, steps: list[int], lr: float, l2: float
) -> None:
    weights = WpSgd(weights=rule, l2=l2).weigh(steps, lr)
    assert sum(weights) == pytest.approx(1, rel=1e-12)
    assert min(weights) >= 0
    for (n, weight), (m, other) in itertools.combinations(zip(steps, weights, strict=True), 2):
        if n <= m:
            assert weight <= other * (1 + 1e-12)
        if n >= m:
            assert weight >= other * (1 - 1e-12)
    # Positive, unless the weight is below what a float can hold.
    behind = max(steps) - min(steps)
    if rule not in ("exp", "exp2") or 2 * behind * math.log1p(-lr * l2) > -700:
        assert min(weights) > 0


@given(st.sampled_from(["exp", "exp2"]), counts, st.integers(0, 10**7), st.floats(1e-6, 0.5), st.floats(1e-3, 1.0))
def test_exponential_weights_depend_on_differences_only(
    rule: WeightRule, steps: list[int], shift: int, lr: float, l2: float
) -> None:
    algorithm = WpSgd(weights=rule, l2=l2)
    assert algorithm.weigh([n + shift for n in steps], lr) == algorithm.weigh(steps, lr)


@given(st.integers(1, 10**7), st.integers(0, 300), st.floats(1e-4, 0.5), st.floats(1e-3, 1.0))
def test_the_ratio_of_two_weights_is_a_power_of_the_contraction(base: int, behind: int, lr: float, l2: float) -> None:
    r = 1 - l2 * lr
    steps = [base + behind, base, base + behind // 2]
    exp, exp2 = (WpSgd(weights=rule, l2=l2).weigh(steps, lr) for rule in ("exp", "exp2"))
    assert exp[1] / exp[0] == pytest.approx(r**behind, rel=1e-6)
    assert exp[1] / exp[2] == pytest.approx(r ** (behind // 2), rel=1e-6)
    if r**behind > 1e-140:
        assert exp2[1] / exp2[0] == pytest.approx(r ** (2 * behind), rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("l2", [1e-6, 1e-2, 1.0, 9.0])
def test_ten_million_steps_behind_is_still_a_number(rule: WeightRule, l2: float) -> None:
    far = 10**7
    weights = WpSgd(weights=rule, l2=l2).weigh([far, 1, far, 2 * far], lr=0.1)
    assert all(math.isfinite(weight) for weight in weights)
    assert sum(weights) == pytest.approx(1, rel=1e-12)
    assert max(weights) == weights[3] >= 1 / 4 - 1e-12
    # Nothing is lost where all are far from the start, but close to each other.
    near = WpSgd(weights=rule, l2=l2).weigh([far, far - 1, far - 2], lr=0.1)
    assert min(near) > 0
    assert near[1] / near[0] == pytest.approx(near[2] / near[1], rel=1e-6)


def test_a_weight_as_small_as_floats_go_is_kept() -> None:
    behind, weight = WpSgd(l2=7e-4).weigh([1, 10**7], lr=0.1)
    assert math.log(behind / weight) == pytest.approx((10**7 - 1) * math.log1p(-7e-5), rel=1e-6)  # e^−700


@given(counts, st.floats(1e-3, 0.5), st.floats(1e-3, 0.5))
def test_the_largest_weight_is_bounded(steps: list[int], lr: float, l2: float) -> None:
    """k/Σr^{T_j} ≤ (1/k) Σ r^{−T_i}; the left side is k times the weight of the fastest."""
    steps = [n % 100 + 1 for n in steps]  # so that the right side is a number
    weights = WpSgd(l2=l2).weigh(steps, lr)
    right = sum((1 - l2 * lr) ** (n - max(steps)) for n in steps) / len(steps)
    assert len(steps) * max(weights) <= right * (1 + 1e-12)


@given(counts, st.floats(0.001, 0.999))
def test_other_rules_are_what_they_are_called(steps: list[int], contraction: float) -> None:
    l2, noise, distance = 0.5, 0.3, 2.0
    lr = (1 - contraction) / l2
    assert WpSgd(weights="count").weigh(steps, lr) == pytest.approx([n / sum(steps) for n in steps])
    assert WpSgd(weights="equal").weigh(steps, lr) == pytest.approx([1 / len(steps)] * len(steps))
    raw = [1 / (noise + contraction**n * distance) ** 2 for n in steps]
    optimal = WpSgd(weights="optimal", l2=l2, noise=noise, distance=distance).weigh(steps, lr)
    assert optimal == pytest.approx([value / sum(raw) for value in raw])


@pytest.mark.parametrize("rule", ["exp", "exp2", "optimal"])
def test_steps_that_do_not_contract_are_refused(rule: WeightRule) -> None:
    with pytest.raises(InputError, match="below 1"):
        WpSgd(weights=rule, l2=2.0).weigh([3, 2], lr=0.5)


# A plain statement of its rounds -----------------------------------------------------------------------------------


def weights_of(rule: WeightRule, steps: Sequence[int], r: float) -> list[float]:
    """As in the paper's terms: T_i = max_j n_j − n_i."""
    behind = [max(steps) - n for n in steps]
    raw = {
        "exp": [r**t for t in behind],
        "exp2": [r ** (2 * t) for t in behind],
        "count": list(map(float, steps)),
        "equal": [1.0 for _ in steps],
        "optimal": [1 / (0.1 + r ** (max(steps) - t)) ** 2 for t in behind],  # σ* = 0.1, δ0 = 1
    }[rule]
    return [value / sum(raw) for value in raw]


def weighted_parallel(
    setting: Setting, rule: WeightRule, *, steps: int, l2: float, rounds: int | None, delay: int, per_node: int
) -> Result:
    """Rounds on links that take nothing but their latency, each worker with its own data.

    With a latency, nodes are of one worker: a sum inside a node would hold up what others tell it.
    """
    assert per_node == 1 or not setting.latency
    ranks = range(setting.num_workers)
    nodes = [list(ranks[first : first + per_node]) for first in ranks[::per_node]]
    # A node takes a step when its slowest worker has its batch.
    step_s = [max(setting.batch_size / setting.paces[rank] for rank in node) for node in nodes]
    # Whoever is at a step when it hears that the fastest has done all of its own completes it.
    heard_s = steps * min(step_s) + setting.latency
    done = [min(steps, math.ceil(round(heard_s / seconds, 9))) for seconds in step_s]
    # All tell all how far they came; then comes a ring.
    ending_s = (1 + 2 * (len(ranks) - 1)) * setting.latency if len(ranks) > 1 else 0.0
    optimizers = [Sgd(setting) for _ in nodes]
    data = OwnData(setting)
    weights, now = start(), 0.0
    made: list[Step] = []
    while sum(step.samples for step in made) < setting.samples and (rounds is None or len(made) < rounds):
        ends, samples = [], 0
        for node, optimizer, count in zip(nodes, optimizers, done, strict=True):
            trace = [weights]
            for _ in range(count):
                at = trace[max(0, len(trace) - 1 - delay)]
                total = torch.zeros_like(weights)
                for rank in node:
                    total += gradient_sum(at, data.take(rank, setting.batch_size))
                samples += len(node) * setting.batch_size
                trace.append(optimizer.moved(trace[-1], total / (len(node) * setting.batch_size)))
            ends.append(trace[-1])
        shares = weights_of(rule, done, 1 - l2 * setting.lr)
        weights = sum((share * end for share, end in zip(shares, ends, strict=True)), torch.zeros_like(weights))
        now += max(count * seconds for count, seconds in zip(done, step_s, strict=True)) + ending_s
        made.append(Step(now, samples, 0, loss(weights)))
    return Result(weights, made)


@st.composite
def settings_without_bytes(draw: st.DrawFn) -> Setting:
    """Links on which nothing but their latency takes time, to speak of."""
    whole_paces = draw(st.lists(st.integers(200, 2000), min_size=1, max_size=5))
    return Setting(
        paces=tuple(pace + extra for pace, extra in zip(whole_paces, AWKWARD, strict=False)),
        batch_size=draw(st.integers(1, 6)),
        samples=draw(st.integers(1, 600)),
        lr=draw(st.floats(0.01, 0.2)),
        momentum=draw(st.sampled_from([0.0, 0.5])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        bandwidth=1e14,
        latency=draw(st.sampled_from([0.0, 1.7e-4, 1.3e-2])),
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=40)
@given(
    settings_without_bytes(),
    rules,
    st.fixed_dictionaries(
        {
            "steps": st.integers(1, 20),
            "l2": st.sampled_from([0.01, 1.0, 4.0]),
            "rounds": st.sampled_from([None, 1, 2]),
            "delay": st.integers(0, 3),
            "per_node": st.integers(1, 3),
        }
    ),
)
def test_is_what_the_paper_says(setting: Setting, rule: WeightRule, parameters: dict[str, Any]) -> None:
    if parameters["per_node"] > 1:
        setting = replace(setting, latency=0.0)
    outcome, events = engine(setting, "wp", {"weights": rule, **parameters}, sampling="shards")
    assert_same(outcome, events, weighted_parallel(setting, rule, **parameters), times=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_leads_elsewhere(rule: WeightRule) -> None:
    """Where nodes come unequally far; else the comparison above would show little."""
    setting = Setting(paces=(1000.0, 310.0, 170.0), samples=2000, bandwidth=1e14, latency=0.0)
    parameters: dict[str, Any] = {"steps": 20, "l2": 1.0, "rounds": 1, "delay": 0, "per_node": 1}
    ends = {other: weighted_parallel(setting, other, **parameters).weights for other in RULES}
    outcome, _ = engine(setting, "wp", {"weights": rule, **parameters}, sampling="shards")
    at = outcome.model["at"].double()
    torch.testing.assert_close(at, ends.pop(rule), rtol=1e-4, atol=1e-5)
    assert min(float((at - end).abs().max()) for end in ends.values()) > 1e-3


@pytest.mark.parametrize(("latency", "steps_of_slow"), [(0.0, 3), (0.05, 5)])
def test_one_shot_stops_everybody_when_word_of_the_fastest_has_come(latency: float, steps_of_slow: int) -> None:
    """The fast one is done at 0.1 s; the slow one takes 0.0345 s for a step."""
    fleet = Fleet(
        machine=(Machine(samples_per_s=1000), Machine(samples_per_s=290)),
        network=Network(bandwidth_bytes_per_s=1e12, latency_s=latency),
    )
    algorithm = make_algorithm("wp", {"steps": 10, "rounds": 1})
    outcome, events = simulate(algorithm, fleet, samples=10_000, batch_size=10)
    assert outcome.error is None
    (update,) = updates(events)  # one-shot, though the budget is not spent
    assert Counter(e.who for e in events if isinstance(e, Compute)) == {"worker-0": 10, "worker-1": steps_of_slow}
    assert update.samples == 100 + 10 * steps_of_slow
    # It tells the fast one how far it came; then comes a ring of two.
    assert update.t == pytest.approx(steps_of_slow * 10 / 290 + latency + 2 * latency, abs=1e-6)


# Special cases -----------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.integers(1, 5), st.sampled_from(["exp", "exp2", "count", "optimal"]), st.integers(1, 12), st.integers(0, 100))
def test_equal_progress_is_simuparallel(num_workers: int, rule: WeightRule, steps: int, seed: int) -> None:
    fleet = Fleet(machine=(Machine(samples_per_s=1000, count=num_workers),))
    job = {"samples": 400, "seed": seed, "momentum": 0.5, "lr": 0.05}
    weighted, events = simulate(make_algorithm("wp", {"weights": rule, "steps": steps, "l2": 1.0}), fleet, **job)
    plain, plain_events = simulate(make_algorithm("simuparallel", {"steps": steps}), fleet, **job)
    assert torch.equal(weighted.model["at"], plain.model["at"])
    assert updates(events) == updates(plain_events)
    assert all(update.samples == num_workers * steps * 8 for update in updates(events))


def test_simuparallel_is_the_plain_mean_of_whatever_was_reached() -> None:
    setting = Setting(paces=(1000.0, 310.0, 170.0), samples=2000, bandwidth=1e14, latency=0.0, momentum=0.5)
    outcome, events = engine(setting, "simuparallel", {"steps": 20}, sampling="shards")
    expected = weighted_parallel(setting, "equal", steps=20, l2=0.0, rounds=None, delay=0, per_node=1)
    assert_same(outcome, events, expected, times=1e-6)
    with pytest.raises(InputError, match="equal"):
        make_algorithm("simuparallel", {"weights": "exp"})


@settings(max_examples=10)
@given(rules, st.integers(1, 40), st.sampled_from([0.0, 0.9]), st.integers(0, 100))
@example("exp", 7, 0.9, 0)  # 7 does not divide 30: the last round overshoots
def test_alone_it_is_sequential_sgd(rule: WeightRule, steps: int, momentum: float, seed: int) -> None:
    setting = Setting(paces=(1000.0,), samples=120, momentum=momentum, lr=0.05, weight_decay=0.01, seed=seed)
    outcome, events = engine(setting, "wp", {"weights": rule, "steps": steps})
    queue, optimizer, weights = Draws(seed), Sgd(setting), start()
    for _ in range(steps * math.ceil(30 / steps)):
        weights = optimizer.moved(weights, gradient_sum(weights, queue.take(4)) / 4)
    torch.testing.assert_close(outcome.model["at"].double(), weights, rtol=1e-4, atol=1e-5)
    assert [update.samples for update in updates(events)] == [4 * steps] * math.ceil(30 / steps)


def test_a_node_of_several_workers_is_one_with_their_batch() -> None:
    """Two nodes of two equal workers each are two workers with twice the batch and the same data."""
    pairs = Setting(paces=(800.0, 800.0, 300.0, 300.0), samples=800, bandwidth=1e14, latency=0.0)
    parameters = {"steps": 10, "l2": 1.0, "rounds": 1}
    outcome, events = engine(pairs, "wp", {**parameters, "per_node": 2}, sampling="shards")
    data, ends = OwnData(pairs), []
    for node, count in (((0, 1), 10), ((2, 3), 4)):  # 10/800 · 300 = 3.75: the fourth is completed
        weights = start()
        for _ in range(count):
            inputs = torch.cat([data.take(rank, 4) for rank in node])
            weights = weights - 0.1 * gradient_sum(weights, inputs) / 8
        ends.append(weights)
    fast, slow = weights_of("exp", [10, 4], 0.9)
    torch.testing.assert_close(outcome.model["at"].double(), fast * ends[0] + slow * ends[1], rtol=1e-4, atol=1e-5)
    assert [update.samples for update in updates(events)] == [10 * 8 + 4 * 8]


# The toy check: ridge regression -----------------------------------------------------------------------------------

LR = L2 = 0.05


def suboptimality(fastest: int, seed: int) -> dict[str, float]:
    """Of the weighted mean of 8 nodes: 4 of full speed, 2 of half, 2 of a quarter; the mean of 16 repetitions."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    inputs = 0.3 * torch.randn(2000, 10, **options)
    truth = 3 * torch.nn.functional.normalize(torch.randn(10, **options), dim=0)
    targets = inputs @ truth + 0.1 * torch.randn(2000, **options)
    hessian = inputs.T @ inputs / 2000 + L2 * torch.eye(10, dtype=torch.float64)
    best = torch.linalg.solve(hessian, inputs.T @ targets / 2000)

    steps = [fastest] * 4 + [fastest // 2] * 2 + [fastest // 4] * 2
    limits = torch.tensor(steps)[:, None]
    weights = torch.zeros(16, 8, 10, dtype=torch.float64)
    for step in range(fastest):
        drawn = torch.randint(2000, (16, 8), generator=generator)
        errors = (inputs[drawn] * weights).sum(-1) - targets[drawn]
        gradient = errors[..., None] * inputs[drawn] + L2 * weights
        weights = torch.where(step < limits, weights - LR * gradient, weights)

    found = {}
    for rule in ("equal", "exp"):
        shares = torch.tensor(WpSgd(weights=rule, l2=L2).weigh(steps, LR), dtype=torch.float64)
        distances = (shares[:, None] * weights).sum(1) - best
        found[rule] = float((0.5 * (distances @ hessian) * distances).sum(1).mean())
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_help_before_nodes_have_mixed_and_hurt_after(seed: int) -> None:
    early, late = suboptimality(400, seed), suboptimality(6000, seed)
    assert early["exp"] < 0.8 * early["equal"]
    assert late["equal"] < 0.8 * late["exp"]
    # The orders of magnitude of the check that was made before there was any code here.
    measured = [early["equal"], early["exp"], late["equal"], late["exp"]]
    for found, expected in zip(measured, [8.1e-3, 5.4e-3, 2.7e-4, 5.3e-4], strict=True):
        assert 1 / 3 < found / expected < 3


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), rules)
@example([0, 5, 3], "exp")
def test_who_had_no_data_left_has_no_weight(counts, weights):
    algorithm = WpSgd(weights=weights, l2=0.5)
    given_ = [algorithm._weight(counts, node, lr=0.1) for node in range(len(counts))]
    assert sum(given_) == pytest.approx(1 if any(counts) else 0)
    assert all(weight == 0 for weight, count in zip(given_, counts, strict=True) if not count)


class Reported:
    """A report that has come."""

    done = True

    def __init__(self, steps):
        self.notes = {"steps": steps, "lr": 0.1}

    def __await__(self):
        yield from ()
        return self


@pytest.mark.parametrize(("steps", "ends"), [([0, 0], False), ([0, 3], True)])
def test_who_had_nothing_to_train_on_ends_no_round(steps, ends):
    """Word of a worker without data says nothing of the fastest."""
    me: Any = SimpleNamespace(
        workers=["me", *range(len(steps))], address="me", receive=lambda other: Reported(steps[other])
    )
    with pytest.raises(StopIteration) as ended:
        RoundReports(me).anyone_is_done().send(None)
    assert ended.value.value is ends


def test_no_node_is_at_two_sites():
    algorithm = WpSgd(per_node=2)
    assert algorithm.subgroups(5) == ((0, 1), (2, 3), (4,))
    assert algorithm.subgroups_at(["a", "a", "a", "b", "b"]) == ((0, 1), (2,), (3, 4))
    # Where nodes have different numbers of workers, each node's weight still counts once.
    machines = [Machine(samples_per_s=1000, site=site) for site in "aaab"]
    _, events = simulate(WpSgd(per_node=2, steps=4, weights="equal"), Fleet(machine=tuple(machines)), samples=400)
    assert {update.samples for update in updates(events)} == {4 * 8 * 4}
