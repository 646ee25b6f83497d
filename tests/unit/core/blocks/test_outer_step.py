"""The step that all workers take together: the momentum that follows from a sum, and what is kept of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.blocks.outer_step import OuterStep
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient, union

parts = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), min_size=1, max_size=6)


def worker() -> Any:
    return SimpleNamespace(kept={})


def outer(me: Any, momentum: float | None = None) -> OuterStep:
    return OuterStep(cast(Worker, me), 1.0, momentum)


def summed(of: list[tuple[int, int]], difference: float = 1.0) -> Gradient:
    """The sum of what workers did: samples, and steps."""
    return union(
        [
            OuterStep.noted(Gradient(torch.full((2,), difference * samples), samples, (0,)), steps)
            for samples, steps in of
        ]
    )


def momentum_of(total: Gradient) -> float:
    """As the second of two steps shows it: x moves by Δ (1 + μ), then by Δ (1 + μ + μ²)."""
    me, start = worker(), torch.zeros(2, dtype=torch.float64)
    step = outer(me)
    first = step.take(start, total)
    moved = float(-first[0] / total.mean[0]) - 1
    second = float((first - step.take(first, total))[0] / total.mean[0])
    assert second == pytest.approx(1 + moved + moved**2, rel=1e-5)
    return moved


@given(parts.filter(lambda of: any(samples for samples, _ in of)))
def test_momentum_is_for_many_steps_of_many_workers(of: list[tuple[int, int]]) -> None:
    momentum = momentum_of(summed(of))
    working = [(samples, steps) for samples, steps in of if samples]
    if len(working) == 1 or max(steps for _, steps in working) <= 4:
        assert momentum == pytest.approx(0, abs=1e-6)
    assert -1e-6 <= momentum <= 1 - 1 / math.sqrt(len(working)) + 1e-6
    # Who did nothing, and in which order they are, does not matter; nor does the size of samples.
    assert momentum_of(summed([*reversed(of), (0, 1)])) == pytest.approx(momentum, abs=1e-5)
    assert momentum_of(summed([(10 * samples, steps) for samples, steps in of])) == pytest.approx(momentum, abs=1e-5)
    longer = momentum_of(summed([(samples, 2 * steps) for samples, steps in of]))
    assert longer >= momentum - 1e-6


@pytest.mark.parametrize(
    ("of", "momentum"),
    [
        ([(100, 8)] * 4, 0.5 * 0.5),
        ([(100, 40)] * 4, 0.9 * 0.5),
        ([(100, 4)] * 4, 0.0),
        ([(100, 40)], 0.0),
        ([(400, 40), (200, 20), (100, 10), (100, 10)], (1 - 4 / 27.5) * (1 - math.sqrt(22) / 8)),
    ],
)
def test_momentum_of_a_round(of: list[tuple[int, int]], momentum: float) -> None:
    assert momentum_of(summed(of)) == pytest.approx(momentum, abs=1e-6)


def test_short_rounds_keep_nothing() -> None:
    """And a long one after them begins with an empty buffer."""
    me, x = worker(), torch.zeros(2)
    step, long, short = outer(me), summed([(100, 8)] * 4), summed([(100, 2)] * 4)
    step.take(x, long)
    assert list(me.kept) == ["outer momentum"]
    assert torch.equal(step.take(x, short), x - 1)
    assert not me.kept
    assert torch.equal(outer(me).take(x, long), x - 1.25)


def test_goes_on_with_what_was_kept() -> None:
    me, long = worker(), summed([(100, 8)] * 4)
    x = outer(me).take(torch.zeros(2), long)
    assert torch.equal(outer(me).take(x, long), x - (1 + 0.25 + 0.25**2))


def test_no_samples_change_nothing() -> None:
    me, x = worker(), torch.ones(2)
    step = outer(me)
    step.take(x, summed([(100, 8)] * 4))
    before = me.kept["outer momentum"].clone()
    assert torch.equal(step.take(x, summed([(0, 0)] * 4)), x)
    assert torch.equal(me.kept["outer momentum"], before)
