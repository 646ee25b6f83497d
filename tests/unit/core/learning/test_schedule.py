"""The learning rate over a run."""

from __future__ import annotations

import pytest

from ownpace.core.learning.schedule import Schedule


def test_schedules():
    assert Schedule().factor(123, 1000) == 1
    assert Schedule(warmup_samples=100).factor(25, None) == 0.25
    assert Schedule(shape="linear").factor(250, 1000) == 0.75
    assert Schedule(shape="cosine").factor(500, 1000) == pytest.approx(0.5)
    step = Schedule(shape="step")
    assert [step.factor(n, 1000) for n in (0, 499, 500, 750)] == pytest.approx([1, 1, 0.1, 0.01])
