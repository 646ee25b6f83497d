"""When updates are made, and how much of the machines is used."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.plain import MESSAGE_BYTES, TASK, Setting, updates
from tests.conformance.plain.network import Sites, layered_seconds, ring_seconds
from tests.conformance.plain.spy import watched

from ownpace import make_algorithm
from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.events import Event, Transfer
from ownpace.fleet import PRESETS, Between, Network, paces
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


# Two tiers of network ----------------------------------------------------------------------------------------------


def sums(events: list[Event], what: str = "all-reduce") -> list[Transfer]:
    return [event for event in events if isinstance(event, Transfer) and event.what == what]


some_sites = st.builds(
    Sites,
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    bandwidth=st.floats(100, 1e5),
    latency=st.sampled_from([0.0, 1e-4, 0.05]),
    between_bandwidth=st.floats(10, 1e5),
    between_latency=st.sampled_from([0.0, 1e-3, 0.5]),
)


@settings(max_examples=60)
@given(some_sites)
@example(Sites(sizes=(6, 1), bandwidth=5000, latency=1e-3, between_bandwidth=5, between_latency=9.0))
def test_a_ring_over_sites_takes_what_its_parts_take_one_by_one(sites):
    _, events = simulate(make_algorithm("sync"), sites.fleet(), task=TASK, samples=50, timing_only=True)
    expected = ring_seconds(sites, sites.of_members, MESSAGE_BYTES)
    assert [event.until - event.t for event in sums(events)] == pytest.approx([expected] * len(sums(events)))


@settings(max_examples=40)
@given(some_sites, st.integers(2, 5), st.sampled_from([0.0, 1e-3, 0.5]))
def test_layered_hides_the_sum_between_sites_behind_loading(sites, num_sites, loading):
    # Of equal size: otherwise small ones are ahead for a while.
    sites = replace(sites, sizes=sites.sizes[:1] * num_sites)
    _, events = simulate(
        make_algorithm("layered"),
        sites.fleet(io_s_per_sample=loading / 8),
        task=TASK,
        samples=8 * sum(sites.sizes) * 6,
        timing_only=True,
    )
    period = layered_seconds(sites, MESSAGE_BYTES, 8 / 1000, loading)
    times = [update.t for update in updates(events)]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([period] * (len(times) - 1))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sites_change_nothing_unless_something_is_between_several(name):
    """Nothing between two sites, or anything between one site and none: today's times, to the bit."""
    plain = paces(4000, 2000, 1000, 1000)
    two = replace(plain, machine=tuple(replace(m, site="ab"[i // 2]) for i, m in enumerate(plain.machine)))
    slow = Network(between=Between(bandwidth_bytes_per_s=100, latency_s=1.0))
    one = replace(plain, network=slow)
    # What sites are for is left out: subgroups of two, as where there is one site.
    algorithm = make_algorithm(name, {"groups": 2} if name == "layered" else {})
    runs = [simulate(algorithm, fleet, samples=400, timing_only=True)[1] for fleet in (plain, two, one)]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != simulate(algorithm, replace(two, network=slow), samples=400, timing_only=True)[1]
