"""Measured paces, and micro-batches of a size that follows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ownpace.core.blocks.micro_batch import GRAINS, PATIENCE, MicroBatch, Sizing
from ownpace.core.blocks.paces import Paces, check_smoothing, differs
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Contribution

paces_per_s = st.floats(10.0, 1e5)
smoothings = st.floats(0.01, 1.0)
NOTHING = Contribution(0, 0.0)


def at(samples_per_s: float, samples: int = 60) -> Contribution:
    return Contribution(samples, samples / samples_per_s)


# Paces -------------------------------------------------------------------------------------------------------------


@given(st.lists(paces_per_s, min_size=1, max_size=5), smoothings)
def test_the_first_measurement_is_taken_as_it_is(measured: list[float], smoothing: float) -> None:
    paces = Paces(len(measured), smoothing)
    assert not paces.known
    paces.take([at(pace) for pace in measured])
    assert paces.samples_per_s == pytest.approx(measured)
    assert paces.known


@given(st.lists(paces_per_s, min_size=1, max_size=20), smoothings)
def test_a_pace_is_the_exponential_mean_of_its_measurements(measured: list[float], smoothing: float) -> None:
    paces, expected = Paces(1, smoothing), measured[0]
    for number, pace in enumerate(measured):
        paces.take([at(pace)])
        expected = (1 - smoothing) * expected + smoothing * pace if number else pace
    assert paces.samples_per_s == pytest.approx([expected])
    assert min(measured) * (1 - 1e-9) <= paces.samples_per_s[0] <= max(measured) * (1 + 1e-9)


@given(paces_per_s, smoothings)
def test_who_contributes_nothing_keeps_the_pace_it_had(pace: float, smoothing: float) -> None:
    paces = Paces(2, smoothing)
    paces.take([at(pace), NOTHING])
    assert not paces.known  # of the second worker nothing has been seen yet
    paces.take([NOTHING, at(2 * pace)])
    assert paces.samples_per_s == pytest.approx([pace, 2 * pace])
    assert paces.known


@pytest.mark.parametrize(("new", "changed"), [(110, False), (90, False), (111, True), (89, True)])
def test_a_tenth_is_no_change(new: float, changed: bool) -> None:
    assert differs(new, 100) is changed


@pytest.mark.parametrize("smoothing", [0.0, -0.1, 1.1, float("nan")])
def test_a_weight_of_the_newest_that_is_none_is_refused(smoothing: float) -> None:
    with pytest.raises(InputError, match="above 0 and at most 1"):
        check_smoothing(smoothing)


# Micro-batches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Computer:
    """A machine that takes `start_s` to begin a micro-batch, whatever its size."""

    samples_per_s: float
    start_s: float = 0.0

    def contribute(self, size: int, count: int = 1) -> Contribution:
        return Contribution(count * size, count * (self.start_s + size / self.samples_per_s))


class Sums:
    """Workers that sum one micro-batch each, again and again; the next size is chosen while a sum is under way."""

    def __init__(self, computers: Sequence[Computer], largest: int, sizing: Sizing = "equal-time") -> None:
        num = len(computers)
        self.computers = computers
        self.micro = [MicroBatch(rank, num, largest, sizing, smoothing=1.0) for rank in range(num)]
        self._under_way = deque([self.sizes])

    @property
    def sizes(self) -> list[int]:
        """What each worker would compute next."""
        return [micro.size for micro in self.micro]

    def next(self) -> list[int]:
        """One more sum; returns the sizes that were chosen after it."""
        self._under_way.append(self.sizes)
        summed = self._under_way.popleft()
        parts = [computer.contribute(size) for computer, size in zip(self.computers, summed, strict=True)]
        for micro, size in zip(self.micro, summed, strict=True):
            micro.learn(parts, size)
        return self.sizes


computers = st.lists(st.builds(Computer, paces_per_s, st.floats(0, 0.1)), min_size=1, max_size=5)


@given(computers, st.integers(1, 512))
def test_fixed_sizes_stay_as_they_are(machines: list[Computer], largest: int) -> None:
    sums = Sums(machines, largest, "fixed")
    assert all(sums.next() == [largest] * len(machines) for _ in range(10))


@given(computers, st.integers(1, 512))
def test_sizes_are_whole_grains_and_never_above_the_largest(machines: list[Computer], largest: int) -> None:
    sums, grain = Sums(machines, largest), max(1, largest // GRAINS)
    for _ in range(30):
        for size in sums.next():
            assert 1 <= size <= largest
            assert size in (1, largest) or size % grain == 0


def test_a_size_is_rounded_to_a_grain() -> None:
    """0.55 · 64 = 35.2, in grains of four."""
    sums = Sums([Computer(1000), Computer(550)], largest=64)
    assert sums.next() == [64, 36]


@given(st.lists(st.floats(100, 1600), min_size=1, max_size=5), st.integers(1, 512))
def test_micro_batches_come_to_take_equally_long(speeds: list[float], largest: int) -> None:
    """Up to the tenth by which a size may be off, and half a grain."""
    sums = Sums([Computer(speed) for speed in speeds], largest)
    for _ in range(5):
        sizes = sums.next()
    fastest = max(speeds)
    assert sizes[speeds.index(fastest)] == largest
    for speed, size in zip(speeds, sizes, strict=True):
        exact, grain = largest * speed / fastest, max(1, largest // GRAINS)
        assert abs(size - exact) <= 0.1 * size + grain / 2 + 0.5
    assert sums.next() == sizes  # and stay


@given(st.floats(0.91, 1.0))
def test_a_size_that_is_off_by_less_than_a_tenth_is_left_alone(ratio: float) -> None:
    assert Sums([Computer(1000), Computer(1000 * ratio)], largest=512).next() == [512, 512]


@given(st.floats(0.1, 0.5), st.floats(2.0, 10.0))
def test_a_size_grows_again_when_the_pace_does(before: float, gain: float) -> None:
    after = min(1.0, before * gain)
    sums = Sums([Computer(1000), Computer(1000 * before)], largest=512)
    for _ in range(5):
        small = sums.next()[1]
    sums.computers = [Computer(1000), Computer(1000 * after)]
    for _ in range(5):
        large = sums.next()[1]
    assert large > small
    assert abs(large - 512 * after) <= 0.1 * large + 16.5


def test_most_of_the_time_between_two_sums_is_not_too_long_for_one_micro_batch() -> None:
    """The fastest computes ten until a sum is there: the slow one may take 0.8 of that for one, 51.2 samples."""
    fast, slow = Computer(1000), Computer(100)
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([fast.contribute(64, count=10), slow.contribute(64)], 64)
    assert micro.size == 52
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([fast.contribute(64), slow.contribute(64)], 64)
    assert micro.size == 8  # of 6.4
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([fast.contribute(64, count=10), Computer(500).contribute(64)], 64)
    assert micro.size == 64  # there would be time for 256, but more than the largest is never asked for


# Where small ones save no time -------------------------------------------------------------------------------------

# A micro-batch takes as long as 1000 samples to begin: a small one is a waste.
SLUGGISH = [Computer(1000), Computer(1000, start_s=1.0)]


def test_shrinking_that_saves_no_time_is_undone_and_tried_again_when_patience_is_over() -> None:
    sums = Sums(SLUGGISH, largest=64)
    trace = [sums.next()[1] for _ in range(2 * PATIENCE + 8)]
    small = trace[0]
    assert small == 4
    # One sum of the old size is under way when it shrinks; the next shows the pace with the new one.
    once = [small, small] + [64] * PATIENCE
    assert trace[: 2 * len(once)] == once + once


def test_nothing_is_undone_where_a_small_one_takes_less_time() -> None:
    sums = Sums([Computer(1000), Computer(62)], largest=64)
    assert [sums.next()[1] for _ in range(3 * PATIENCE)] == [4] * (3 * PATIENCE)


@given(st.floats(0.01, 1.2))
def test_a_pace_may_fall_by_a_third_of_what_the_size_does(left: float) -> None:
    """From 64 samples to 32: a sixth of the pace."""
    assume(abs(left - 5 / 6) > 1e-6)
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([at(1000), at(500)], 64)
    assert micro.size == 32
    micro.learn([at(1000), at(500 * left)], 32)
    assert micro.size == (64 if left < 5 / 6 else 32)


@given(st.lists(paces_per_s, max_size=10))
def test_sums_that_were_begun_with_the_old_size_say_nothing_of_the_new_one(measured: list[float]) -> None:
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([at(1000), at(500)], 64)
    for pace in measured:
        micro.learn([at(1000), at(pace)], 64)
        assert micro.size == 32


def test_growing_is_never_looked_back_at() -> None:
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([at(1000), at(500)], 64)
    micro.learn([at(1000), at(500)], 32)  # the shrinking was right
    micro.learn([at(1000), at(1000)], 32)
    assert micro.size == 64
    micro.learn([at(1000), at(990)], 64)
    assert micro.size == 64


def test_a_sum_without_me_does_not_tell_what_shrinking_brought() -> None:
    micro = MicroBatch(1, 2, 64, "equal-time", smoothing=1.0)
    micro.learn([at(1000), at(500)], 64)
    micro.learn([at(1000), NOTHING], 32)
    assert micro.size == 32
    micro.learn([at(1000), at(100)], 32)  # this one does
    assert micro.size == 64


@given(computers, st.integers(1, 512), st.integers(0, 3))
def test_who_contributed_nothing_learns_no_size(machines: list[Computer], largest: int, rank: int) -> None:
    rank %= len(machines)
    micro = MicroBatch(rank, len(machines), largest, "equal-time", smoothing=1.0)
    parts = [machine.contribute(largest) for machine in machines]
    parts[rank] = NOTHING
    micro.learn(parts, largest)
    assert micro.size == largest


@given(st.lists(paces_per_s, min_size=1, max_size=5), st.sampled_from(["fixed", "equal-time"]))
def test_paces_are_known_once_all_have_been_measured(measured: list[float], sizing: Sizing) -> None:
    micro = MicroBatch(0, len(measured), 64, sizing, smoothing=1.0)
    assert micro.paces is None
    micro.learn([NOTHING] + [at(pace) for pace in measured[1:]], 64)
    assert micro.paces is None
    micro.learn([at(pace) for pace in measured], 64)
    assert micro.paces == pytest.approx(measured)
