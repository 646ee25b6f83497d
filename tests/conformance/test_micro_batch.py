"""Micro-batches of equal time, as runs show them."""

from __future__ import annotations

import itertools

import pytest

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event, Update
from ownpace.fleet import Fleet, Machine, Network, Slowdown, paces
from ownpace.testing import simulate


def sizes_after(events: list[Event], time: float) -> dict[str, set[int]]:
    sizes: dict[str, set[int]] = {}
    for event in events:
        if isinstance(event, Compute) and event.t > time:
            sizes.setdefault(event.who, set()).add(event.samples)
    return sizes


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_micro_batches_take_equally_long(name):
    fleet = paces(4000, 2000, 1000, 500, jitter=0.0)
    _, events = simulate(
        make_algorithm(name, {"micro": "equal-time", "max_batch": 0}), fleet, batch_size=64, samples=8000, lr=0.01
    )
    expected = {"worker-0": {64}, "worker-1": {32}, "worker-2": {16}, "worker-3": {8}}
    assert sizes_after(events, 0.3) == expected
    seconds = {e.until - e.t for e in events if isinstance(e, Compute) and e.t > 0.3}
    assert max(seconds) == pytest.approx(min(seconds)) == pytest.approx(0.016)
    _, events = simulate(
        make_algorithm(name, {"micro": "fixed", "max_batch": 0}), fleet, batch_size=64, samples=8000, lr=0.01
    )
    assert sizes_after(events, 0.3) == {who: {64} for who in expected}


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_micro_batches_follow_a_change_of_pace(name):
    """Up to the tenth by which a size may be off, and a grain; four seconds are two hundred updates."""
    slow = Slowdown(from_s=2, until_s=1000, factor=4)
    fleet = Fleet(machine=(Machine(samples_per_s=4000), Machine(samples_per_s=4000, slowdown=(slow,))))
    _, events = simulate(
        make_algorithm(name, {"micro": "equal-time", "max_batch": 0}),
        fleet,
        batch_size=64,
        seconds=8.0,
        timing_only=True,
    )
    before = [e for e in events if isinstance(e, Compute) and e.until < 2]
    assert {event.samples for event in before} == {64}
    after = sizes_after(events, 6)
    assert after["worker-0"] == {64}
    assert all(14 <= size <= 18 for size in after["worker-1"])


@pytest.mark.parametrize("name", ["abs", "pace", "acco"])
def test_micro_batches_do_not_shrink_where_beginning_one_is_what_takes_long(name):
    """worker-1 takes 0.2 s to begin: four samples take it as long as 64. It tries that now and then, and goes back."""
    fleet = Fleet(machine=(Machine(samples_per_s=4000), Machine(samples_per_s=4000, s_per_batch=0.2)))
    _, events = simulate(
        make_algorithm(name, {"micro": "equal-time", "max_batch": 0}),
        fleet,
        batch_size=64,
        seconds=40.0,
        timing_only=True,
    )
    sizes = [event.samples for event in events if isinstance(event, Compute) and event.who == "worker-1"]
    assert len(sizes) > 100
    small = sum(size < 64 for size in sizes) / len(sizes)
    assert 0 < small < 0.2


def test_fixed_costs_are_paid_for_each_micro_batch_and_each_update():
    """Three micro-batches and a step, one after the other; the sum of one worker takes no time."""
    fleet = Fleet(machine=(Machine(samples_per_s=1000, s_per_batch=0.01, s_per_update=0.05),))
    batch_s, step_s = 3 * 0.02, 0.05
    _, events = simulate(make_algorithm("sync"), fleet, batch_size=30, micro_batch=10, samples=300)
    assert moments(events) == pytest.approx([batch_s + number * (batch_s + step_s) for number in range(10)])
    # A local step takes as long as one that is an update, and so does putting the average in place.
    _, events = simulate(make_algorithm("local", {"steps": 1}), fleet, batch_size=30, micro_batch=10, samples=300)
    expected = [batch_s + step_s + number * (batch_s + 2 * step_s) for number in range(10)]
    assert moments(events) == pytest.approx(expected)


def moments(events: list[Event]) -> list[float]:
    return [event.t for event in events if isinstance(event, Update)]


def test_what_is_sent_after_an_update_leaves_after_it():
    """The next sum of pace begins when the last has been applied: a period is a sum and a step, if both are long."""
    network = Network(bandwidth_bytes_per_s=1e12, latency_s=0.1)
    fleet = Fleet(machine=(Machine(samples_per_s=1e6, s_per_update=0.3, count=2),), network=network)
    _, events = simulate(make_algorithm("pace", {"micro": "fixed"}), fleet, batch_size=8, samples=160)
    moments = sorted(event.t for event in events if isinstance(event, Update) and event.who == "worker-0")
    periods = [later - earlier for earlier, later in itertools.pairwise(moments)][2:-1]
    assert periods == pytest.approx([0.2 + 0.3] * len(periods), rel=1e-3)
