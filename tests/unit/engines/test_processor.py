"""How long a machine takes for what it is given."""

from __future__ import annotations

import json

import pytest

from ownpace.engines.processor import Processor
from ownpace.fleet import Fleet, Machine, Slowdown


def processor(**machine) -> Processor:
    return Processor(Fleet(machine=(Machine(samples_per_s=10, **machine),)).workers[0], 0, 0)


def test_slowdowns_take_effect_in_the_middle():
    slow = Slowdown(from_s=2, until_s=4, factor=2)
    assert processor(slowdown=(slow,)).compute(0, 10) == (0, 1)
    assert processor(slowdown=(slow,)).compute(1, 20) == (1, 4)  # one second, then two at half the pace
    assert processor(slowdown=(slow,)).compute(1, 30) == (1, 5)
    assert processor(slowdown=(slow,)).compute(3, 5) == (3, 4)
    assert processor(slowdown=(slow,)).compute(5, 5) == (5, 5.5)


def test_jitter_has_its_mean_and_lengthens_only():
    unsteady = processor(jitter=0.5)
    lengths = []
    now = 0.0
    for _ in range(4000):
        start, end = unsteady.compute(now, 10)
        lengths.append(end - start)
        now = end
    assert min(lengths) >= 1
    assert sum(lengths) / 4000 == pytest.approx(1 + 0.5 * 0.7979, rel=0.02)


def test_a_machine_does_one_thing_at_a_time():
    machine = processor()
    assert machine.compute(0, 10) == (0, 1)
    assert machine.compute(0, 10) == (1, 2)


def test_a_machine_goes_on_with_the_same_jitter():
    one, other = processor(jitter=0.5), processor(jitter=0.5)
    for _ in range(70):  # more than one block of random numbers
        one.compute(0, 1)
    other.go_on(json.loads(json.dumps(one.state())))
    assert [one.compute(0, 1) for _ in range(70)] == [other.compute(0, 1) for _ in range(70)]


def test_what_is_abandoned_holds_nothing_up():
    one = processor(io_s_per_sample=1.0)
    one.load(0, 100)
    one.compute(0, 100)
    one.abandon(3.0)
    assert one.load(3.0, 1)[0] == 3.0
    assert one.compute(3.0, 1)[0] == 3.0


def test_micro_batches_and_updates_have_fixed_costs():
    machine = processor(s_per_batch=0.25, s_per_update=0.5)
    assert machine.compute(0, 10) == (0, 1.25)
    assert machine.update(1.0) == 1.75  # the machine was busy until then
    assert machine.compute(1.3, 5) == (1.75, 2.5)
    slow = Slowdown(from_s=2, until_s=4, factor=2)
    assert processor(s_per_update=0.5, slowdown=(slow,)).update(2.0) == 3.0


def test_jitter_lengthens_the_beginning_too():
    plain, slower = processor(jitter=0.5), processor(jitter=0.5, s_per_batch=1.0)
    for _ in range(5):
        first, second = (each.compute(0, 10) for each in (plain, slower))
        assert second[1] - second[0] == pytest.approx(2 * (first[1] - first[0]))


def test_parts_of_a_micro_batch_take_as_long_as_the_whole():
    slow = Slowdown(from_s=2, until_s=4, factor=2)
    whole, in_parts = processor(slowdown=(slow,), jitter=0.5), processor(slowdown=(slow,), jitter=0.5)
    start, end = whole.compute(1, 20)
    work_s = in_parts.work_s(20)
    assert in_parts.spend(1, 0.25 * work_s)[0] == start
    middle = in_parts.spend(0, 0.25 * work_s)[1]
    assert in_parts.spend(0, 0.5 * work_s)[0] == middle
    assert in_parts.spend(0, 0.0)[1] == pytest.approx(end)
    assert whole.partway(start, end, 0.5) == pytest.approx(middle)


def test_a_share_of_the_work_is_done_sooner_where_the_pace_is_higher():
    slow = Slowdown(from_s=2, until_s=4, factor=2)
    machine = processor(slowdown=(slow,))
    assert machine.compute(1, 30) == (1, 5)
    assert [machine.partway(1, 5, share) for share in (0, 1 / 6, 1 / 3, 2 / 3, 1)] == pytest.approx([1, 1.5, 2, 4, 5])
    assert [machine.partway(3, 4, share) for share in (0.5, 1)] == pytest.approx([3.5, 4])
    assert [machine.partway(5, 7, share) for share in (0.5, 1)] == pytest.approx([6, 7])
    assert processor().partway(1, 3, 0.25) == 1.5
