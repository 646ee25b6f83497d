"""Learning-rate rules: estimates, gains, and what AdaScale does to the schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.plain.spy import spied

from ownpace.core.blocks.lr_rules import LrRule
from ownpace.core.contract.values import Gradient, union
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.schedule import Schedule
from ownpace.fleet import Network, paces
from ownpace.tasks import Quadratic
from ownpace.testing import simulate


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
    """r out of the workers' own gradients, by hand.

    The first ten estimates are averaged with equal weight; then each new one has a tenth of the weight.
    """
    algorithm, records = spied(name, lr_rule="adascale", micro="fixed", max_batch=0)
    fleet = paces(4003, 2005, 1007, 1009, jitter=0.0, network=Network(latency_s=2e-3))
    spec = OptimizerSpec(lr=0.02, schedule=Schedule(shape="linear"))
    task = Quadratic(dimensions=7, num_samples=101, noise=5.0)
    simulate(algorithm, fleet, task=task, optimizer=spec, samples=2000, batch_size=8)
    steps = records[0].steps[:16]
    assert len(steps) == 16
    reference, position = 32, 0.0
    variance, square, gains = 0.0, 0.0, []
    for t, committed in enumerate(steps):
        parts = [record.sums[t].gradient for record in records.values()]
        n = sum(part.samples for part in parts)
        a = sum(part.samples * float(part.mean.square().sum()) for part in parts)
        b = n * float((torch.stack([part.total for part in parts]).sum(0) / n).square().sum())
        weight = max(0.1, 1 / (t + 1))
        new = (a - b) / 3
        variance, square = (1 - weight) * variance + weight * new, (1 - weight) * square + weight * (b - new) / n
        sigma, m = max(0.0, variance) / reference, max(0.0, square)
        r = (sigma + m) / (sigma * reference / n + m)
        gains.append(r)
        assert committed.lr_scale == pytest.approx(r, rel=1e-4)
        assert committed.advance == pytest.approx(r * reference, rel=1e-4)
        assert committed.lr == pytest.approx(0.02 * max(0.0, 1 - position / 2000), rel=1e-4, abs=1e-9)
        position += r * reference
        moved = committed.before - committed.after
        torch.testing.assert_close(moved, committed.lr * r * committed.gradient.mean, rtol=1e-3, atol=1e-6)
    assert max(gains) > 1.5  # else a gain of one would pass as well
