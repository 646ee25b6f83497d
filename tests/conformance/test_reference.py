"""The baselines sync, balanced, async and stale against a second, plain statement of each."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import MESSAGE_BYTES, Setting, assert_same, batches, drawn_settings, engine
from tests.conformance.plain.ring import shares, synchronous
from tests.conformance.plain.server import NO_BOUND, BarrierServer, ParameterServer

common = settings(max_examples=30)


@common
@given(drawn_settings())
def test_sync_is_the_mean_over_all_workers_behind_a_barrier(setting: Setting) -> None:
    outcome, events = engine(setting, "sync")
    expected = synchronous(setting)
    assert_same(outcome, events, expected)
    assert batches(events, setting) == expected.sizes


@common
@given(drawn_settings())
def test_sync_through_a_server_waits_there_for_all_workers(setting: Setting) -> None:
    outcome, events = engine(setting, "sync", via="servers")
    assert_same(outcome, events, BarrierServer(setting).run())


@common
@given(drawn_settings(slow=True), st.sampled_from([0.1, 0.3, 0.7, 1.0]), st.sampled_from([0.0, 0.05, 0.3]))
@example(Setting(paces=(1000.0, 1000.0, 5.0), batch_size=2, samples=30), 0.3, 0.0)  # two have most, one has nothing
# Looked at more closely after eight rounds.
@example(Setting(paces=(1000.0, 500.0, 470.0), batch_size=64, samples=3000), 0.3, 0.3)
def test_balanced_gives_each_worker_its_share(setting: Setting, smoothing: float, tolerance: float) -> None:
    outcome, events = engine(setting, "balanced", smoothing=smoothing, tolerance=tolerance)
    expected = synchronous(setting, smoothing, tolerance)
    assert_same(outcome, events, expected)
    assert batches(events, setting) == expected.sizes


@common
@given(drawn_settings())
def test_async_applies_each_push_at_once(setting: Setting) -> None:
    outcome, events = engine(setting, "async")
    assert_same(outcome, events, ParameterServer(setting, NO_BOUND).run())


@common
@given(drawn_settings(), st.integers(0, 4))
def test_stale_holds_back_who_is_too_far_ahead(setting: Setting, bound: int) -> None:
    outcome, events = engine(setting, "stale", staleness=bound)
    assert_same(outcome, events, ParameterServer(setting, bound).run())


@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("bound", [0, 1, None])
def test_workers_that_are_ready_together_are_served_by_rank(num_workers: int, bound: int | None) -> None:
    # Powers of two, so that equal times are equal to the last bit.
    setting = Setting(
        paces=(1024.0,) * num_workers, bandwidth=float(MESSAGE_BYTES * 64), latency=1 / 1024, momentum=0.5
    )
    outcome, events = engine(setting, "async") if bound is None else engine(setting, "stale", staleness=bound)
    assert_same(outcome, events, ParameterServer(setting, NO_BOUND if bound is None else bound).run())


@pytest.mark.parametrize(
    ("speeds", "whole", "expected"),
    [
        ([4, 2, 1, 1], 32, [16, 8, 4, 4]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([4, 2, 1, 1], 10, [5, 3, 1, 1]),
        ([100, 100, 1], 6, [2, 3, 1]),
    ],
)
def test_the_reference_divides_as_by_hand(speeds: list[float], whole: int, expected: list[int]) -> None:
    assert shares(speeds, whole) == expected
