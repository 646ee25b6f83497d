"""When updates are made, and how much of the machines is used."""

from __future__ import annotations

import itertools

import pytest
from tests.conformance.plain import TASK, Setting, updates
from tests.conformance.plain.spy import watched

from ownpace import make_algorithm
from ownpace.fleet import PRESETS
from ownpace.report import summarize
from ownpace.testing import simulate


@pytest.mark.parametrize(
    ("seconds", "sum_s", "micro_batches", "period"),
    [
        ((1, 1, 1, 1), 0.5, (1, 1, 1, 1), 1.0),
        ((1, 1, 1, 4), 0.5, (4, 4, 4, 1), 4.0),
        ((1, 1, 2, 2), 3.0, (4, 4, 2, 2), 4.0),
    ],
)
@pytest.mark.parametrize("name", ["abs", "pace"])
def test_the_table_of_times(name, seconds, sum_s, micro_batches, period):
    """τ and C give micro-batches per iteration and its period; with powers of two, to the last bit."""
    setting = Setting(paces=tuple(4 / tau for tau in seconds), batch_size=4, samples=400, lr=0.03).with_ring(sum_s)
    assert setting.ring_seconds == sum_s
    events, records = watched(setting, name, micro="fixed", max_batch=0)
    times = [update.t for update in updates(events)[:-1]]  # the last is made as soon as its sum is there
    assert len(times) > 5
    assert {b - a for a, b in itertools.pairwise(times)} == {period}
    for rank, expected in enumerate(micro_batches):
        assert {len(sums.versions) for sums in records[rank].sums[1:]} == {expected}


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_a_sum_that_takes_twice_as_long_changes_no_throughput(name):
    rates: dict[str, list[float]] = {name: [], "sync": []}
    for sum_s in (0.02, 0.04, 0.08):
        setting = Setting(paces=(4000.0, 2000.0, 1000.0, 1000.0)).with_ring(sum_s)
        for each, so_far in rates.items():
            _, events = simulate(
                make_algorithm(each, {} if each == "sync" else {"max_batch": 0}),
                setting.fleet,
                task=TASK,
                samples=20_000,
                batch_size=16,
                timing_only=True,
            )
            made = updates(events)[10:-2]
            so_far.append((made[-1].total_samples - made[0].total_samples) / (made[-1].t - made[0].t))
            if each == name:
                assert min(summarize(events).busy.values()) > 1 - 1e-9
    assert rates[name] == pytest.approx([8000] * 3, rel=0.01)
    assert rates["sync"][0] > 2 * rates["sync"][2]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["abs", "pace"])
def test_nothing_but_the_last_sum_is_missing_to_the_limit(name, preset):
    """Without a bound on updates, nobody ever waits: only what is under way at the end is not counted."""
    _, events = simulate(
        make_algorithm(name, {"max_batch": 0}),
        PRESETS[preset][1],
        seconds=48.0,
        batch_size=64,
        timing_only=True,
        detail=False,
    )
    summary = summarize(events)
    assert 0.98 <= summary.share_of_limit <= 1.02
    assert min(summary.busy.values()) > 0.999
