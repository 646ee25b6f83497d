"""Micro-batches of equal time, as runs show them."""

from __future__ import annotations

import pytest

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event
from ownpace.fleet import Fleet, Machine, Slowdown, paces
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
