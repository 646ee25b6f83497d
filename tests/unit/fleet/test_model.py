"""Machines: what is refused, and how fast they are at the most."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.fleet import Fleet, Machine, PlannedFault, Slowdown, fleet_from


def test_overlapping_slowdowns_are_refused():
    slow = (Slowdown(from_s=0, until_s=2, factor=2), Slowdown(from_s=1, until_s=3, factor=2))
    with pytest.raises(InputError, match="overlap at 1 s"):
        Machine(samples_per_s=1, slowdown=slow)


def test_a_machine_has_a_thousand_slowdowns_at_most():
    slow = tuple(Slowdown(from_s=start, until_s=start + 1, factor=2) for start in range(1001))
    with pytest.raises(InputError, match="has 1,001 slow-downs; it may have 1,000, at most"):
        Machine(samples_per_s=1, slowdown=slow)


def test_limit_counts_jitter_slowdowns_and_pauses():
    slow = Slowdown(from_s=5, until_s=10, factor=2)
    fleet = fleet_from(
        {
            "machine": [{"samples_per_s": 100, "jitter": 0.5}, {"samples_per_s": 10, "name": "slow", "slowdown": []}],
            "fault": [{"worker": "slow-0", "at_s": 0, "kind": "pause", "back_at_s": 5}],
        }
    )
    steady = 100 / (1 + 0.5 * math.sqrt(2 / math.pi))
    assert fleet.limit_samples_per_s(10) == pytest.approx(steady + 10 * 0.5)
    slowed = Fleet(machine=(Machine(samples_per_s=10, slowdown=(slow,)),))
    assert slowed.limit_samples_per_s(20) == pytest.approx(10 * 17.5 / 20)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), st.floats(0.1, 50))
def test_mean_rate_is_the_integral_of_the_rate(lengths, until):
    """Against a sum over small pieces."""
    edges, slow, start = [], [], 0.0
    for index, length in enumerate(lengths):
        if index % 2 == 0:
            slow.append(Slowdown(from_s=start, until_s=start + length, factor=1.0 + index))
        start += length
        edges.append(start)
    worker = Fleet(machine=(Machine(samples_per_s=1, slowdown=tuple(slow)),)).workers[0]
    pieces = 4000
    points = [(k + 0.5) * until / pieces for k in range(pieces)]
    rates = [next((1 / s.factor for s in slow if s.from_s <= t < s.until_s), 1.0) for t in points]
    assert worker.mean_rate(until) == pytest.approx(sum(rates) / pieces, rel=5e-3)


def test_a_machine_that_is_away_is_not_in_the_limit():
    machines = (Machine(samples_per_s=100, count=2),)
    faults = (
        PlannedFault(worker="worker-0", at_s=2),
        PlannedFault(worker="worker-1", at_s=4, kind="cut", back_at_s=9),
        PlannedFault(worker="server-0", at_s=1),
    )
    fleet = Fleet(machine=machines, fault=faults)
    assert fleet.limit_samples_per_s(10) == pytest.approx(100 * 0.2 + 100 * 0.5)
    assert fleet.limit_samples_per_s(2) == pytest.approx(200)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"worker": "server-1"}, "the fleet's last server is server-0"),
        ({"worker": "server-0", "kind": "cut"}, "servers can only be killed"),
        ({"worker": "worker-7"}, "'worker-7', which is not in the fleet"),
        ({"worker": "server-x"}, "'server-x', which is not in the fleet"),
        ({"worker": "worker-0", "kind": "slow"}, "allowed: kill, pause, cut"),
        ({"worker": "worker-0", "back_at_s": 1.0}, "back_at_s must be later"),
    ],
)
def test_faults_that_cannot_be_are_refused(fault, message):
    with pytest.raises(InputError, match=message):
        Fleet(machine=(Machine(samples_per_s=100),), fault=(PlannedFault(at_s=1.0, **fault),))


def test_beginning_micro_batches_counts_in_the_limit():
    fleet = Fleet(machine=(Machine(samples_per_s=100, s_per_batch=0.1, s_per_update=5.0),))
    assert fleet.limit_samples_per_s(10, micro_batch=10) == pytest.approx(10 / (0.1 + 0.1))
    assert fleet.limit_samples_per_s(10, micro_batch=1) == pytest.approx(1 / (0.1 + 0.01))
    assert fleet.limit_samples_per_s(10) == pytest.approx(100)


@pytest.mark.parametrize("name", ["s_per_batch", "s_per_update"])
def test_fixed_costs_are_those_of_a_pace(name):
    make: Callable[..., Machine] = Machine
    with pytest.raises(InputError, match=f"{name} is -1"):
        make(samples_per_s=1, **{name: -1.0})
    with pytest.raises(InputError, match=rf"{name} is 10000000.0; it must be at most"):
        make(samples_per_s=1, **{name: 1e7})
    with pytest.raises(InputError, match="has no samples_per_s, but"):
        make(**{name: 1.0})
