"""The learning rate over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.schedule import Schedule


def test_schedules():
    assert Schedule().factor(123, 1000) == 1
    assert Schedule(warmup_samples=100).factor(25, None) == 0.25
    assert Schedule(shape="linear").factor(250, 1000) == 0.75
    assert Schedule(shape="cosine").factor(500, 1000) == pytest.approx(0.5)
    step = Schedule(shape="step")
    assert [step.factor(n, 1000) for n in (0, 499, 500, 750)] == pytest.approx([1, 1, 0.1, 0.01])


@given(
    shape=st.sampled_from(["constant", "cosine", "linear", "step"]),
    warmup=st.integers(0, 500),
    total=st.none() | st.integers(1, 2000),
    samples=st.floats(0, 3000),
)
def test_a_factor_lies_between_0_and_1_and_rises_only_while_warming_up(shape, warmup, total, samples):
    schedule = Schedule(shape=shape, warmup_samples=warmup)
    now, later = schedule.factor(samples, total), schedule.factor(samples + 1, total)
    assert 0 <= now <= 1
    assert later >= now - 1e-12 if samples + 1 < warmup else later <= now + 1e-12 or samples < warmup


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_a_falling_schedule_ends_at_zero_and_stays_there(shape):
    schedule = Schedule(shape=shape, warmup_samples=10)
    assert schedule.factor(1000, 1000) == pytest.approx(0)
    assert schedule.factor(5000, 1000) == pytest.approx(0)
    assert schedule.factor(10, 1000) == 1


def test_milestones_that_fall_are_refused():
    with pytest.raises(InputError, match="they must rise"):
        Schedule(shape="step", milestones=(0.75, 0.5))
