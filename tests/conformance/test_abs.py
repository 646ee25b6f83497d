"""ABS-SGD against a plain statement of it, and what must hold of it and of Pace-SGD."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.conformance.plain import Setting, assert_same, engine, updates
from tests.conformance.plain.late import delayed
from tests.conformance.plain.ring import recorded
from tests.conformance.plain.spy import spied, watched
from tests.conformance.plain.strategies import late_settings, rules, sizings
from torch import Tensor, nn

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.fleet import Network, paces
from ownpace.report import summarize
from ownpace.tasks import Quadratic
from ownpace.testing import run_on, simulate


@settings(max_examples=40)
@given(late_settings, sizings, rules)
def test_abs_applies_each_sum_one_update_late(setting, sizing, rule):
    outcome, events = engine(setting, "abs", micro=sizing, lr_rule=rule)
    micro = None if sizing == "fixed" else recorded(events, setting)
    assert_same(outcome, events, delayed(setting, micro, rule=rule))


UNEVEN = Setting(
    paces=(4003.0, 2005.0, 1007.0, 1009.0), batch_size=8, samples=3600, lr=0.02, momentum=0.5, latency=2e-3
)
late = pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("abs", {}),
        ("abs", {"micro": "equal-time"}),
        ("pace", {"predict": "own", "max_batch": 0}),
        ("pace", {"predict": "share", "micro": "fixed", "max_batch": 0}),
    ],
)


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
        unequal += not torch.allclose(torch.stack([part.mean for part in parts]).mean(0), total.mean, rtol=1e-2)
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


# The bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "num_updates", "num_runs"), [(0.5, 20, 20), (0.5, 300, 2), (0.1, 20, 20), (0.1, 300, 2)]
)
def test_the_bound_on_the_mean_squared_gradient(lr, num_updates, num_runs):
    """avg E‖∇f‖² ≤ (8/5)[Δ/(ηT) + (ηLσ²/2)(1 + ηL)·avg(1/n_t)], for η ≤ 1/2L and μ = 0."""
    task = Quadratic(dimensions=2, noise=3.0)
    a = task.curvatures.double()
    train = task.train_samples()
    assert isinstance(train, TensorSamples)
    inputs = train.inputs.double()
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
