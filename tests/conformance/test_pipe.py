"""Pipe-SGD against a plain statement of it; ABS-SGD among equals is the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.conformance.plain import Setting, assert_same, engine, updates
from tests.conformance.plain.late import pipelined
from tests.conformance.plain.strategies import late_settings


@settings(max_examples=30)
@given(late_settings)
def test_pipe_applies_equal_batches_one_update_late(setting):
    outcome, events = engine(setting, "pipe")
    assert_same(outcome, events, pipelined(setting))


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
