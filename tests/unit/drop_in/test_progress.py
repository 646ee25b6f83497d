"""What a script is told of the fleet's progress, out of what a worker knows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.values import Gradient
from ownpace.drop_in.progress import FleetProgress
from ownpace.engines.progress import Progress

sizes = st.lists(st.integers(1, 100), min_size=1, max_size=20)


def update(progress: Progress, fleet: FleetProgress, samples: int, advance: float | None = None) -> None:
    progress.made_update(Gradient(torch.zeros(1), samples, (0,)), advance)
    fleet.take(progress, 0)


class Noting:
    """Follows, and notes how far the fleet was."""

    def __init__(self, fleet: FleetProgress) -> None:
        self.seen: list[int] = []
        self._fleet = fleet
        fleet.lead(self)

    def go_on(self) -> None:
        self.seen.append(self._fleet.steps)

    def settle(self) -> None:
        self.seen.append(self._fleet.steps)

    def stay(self) -> None:
        self.seen.clear()


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 30), st.integers(1, 4))
def test_steps_are_those_of_an_ordinary_loop_over_the_same_samples(
    loops: list[list[int]], batch_size: int, workers: int
) -> None:
    """At every update ⌊samples / (batch size · workers)⌋; at the end of a loop, a last smaller batch counts."""
    fleet, progress = FleetProgress(workers), Progress(math.inf)
    before, noting = 0, Noting(fleet)
    for counts in loops:
        fleet.begin_loop(batch_size, sum(counts), sum(counts))
        for number, count in enumerate(counts, 1):
            update(progress, fleet, count)
            assert fleet.steps == before + sum(counts[:number]) // (batch_size * workers)
        fleet.end_loop(1)
        before += math.ceil(sum(counts) / (batch_size * workers))
        assert fleet.steps == before
    assert noting.seen == sorted(noting.seen)
    assert fleet.epoch == len(loops)
    assert fleet.updates == sum(map(len, loops))
    assert fleet.samples == sum(map(sum, loops))


def test_leads_what_follows_and_scripts_that_ask() -> None:
    following, asked = FleetProgress(2), FleetProgress(2)
    assert not following.leads
    Noting(following)
    asked.is_asked = True
    assert following.leads
    assert asked.leads


def test_a_loop_that_is_left_counts_its_complete_passes() -> None:
    fleet, progress = FleetProgress(2), Progress(math.inf)
    for passes, epoch in ((2, 2), (0, 2), (3, 5)):
        fleet.begin_loop(4, 1000, 10)
        for _ in range(2 * passes + 1):
            update(progress, fleet, 5)
        fleet.end_loop(None)
        assert fleet.epoch == epoch


def test_a_pass_in_which_samples_were_dropped_is_complete_with_its_loop() -> None:
    fleet, progress = FleetProgress(1), Progress(math.inf)
    for epoch in (2, 4):
        fleet.begin_loop(4, 20, 10)
        update(progress, fleet, 19)
        assert fleet.epoch == epoch - 1
        fleet.end_loop(2)
        assert fleet.epoch == epoch


def test_a_later_run_goes_on_counting() -> None:
    """From the middle of a pass, which then begins anew, as far as is known here."""
    first, progress = FleetProgress(2), Progress(math.inf)
    first.begin_loop(5, 100, 50)
    for _ in range(7):
        update(progress, first, 10)
    later, again = FleetProgress(2), Progress(math.inf)
    noting = Noting(later)
    later.load_state_dict(first.state_dict())
    assert (later.updates, later.samples, later.epoch, later.steps) == (7, 70, 1, 7)
    later.begin_loop(5, 30, 50)
    for _ in range(3):
        update(again, later, 10)
    assert (later.updates, later.samples, later.epoch) == (10, 100, 1)
    assert noting.seen == [8, 9, 10]


def test_a_schedule_moves_by_what_an_update_says_it_gained() -> None:
    fleet, progress = FleetProgress(1), Progress(math.inf)
    fleet.begin_loop(10, math.inf, math.inf)
    update(progress, fleet, 40, advance=20.0)
    assert (fleet.steps, fleet.samples) == (2, 40)


def test_local_steps_move_a_schedule_by_what_all_will_have_done() -> None:
    """At first as if all did the same; then by what they did in the round before, for each of this worker's samples."""
    fleet, progress = FleetProgress(2), Progress(math.inf)
    fleet.begin_loop(10, 200, 200)
    for own, steps in ((10, 1), (20, 2), (30, 3)):
        fleet.take(progress, own)
        assert (fleet.steps, fleet.samples, fleet.updates) == (steps, 0, 0)
    update(progress, fleet, 90)  # the other one did 60
    assert fleet.position == pytest.approx(4.5)
    fleet.take(progress, 10)
    assert fleet.position == pytest.approx(4.5 + 1.5)
    fleet.take(progress, 500)
    assert fleet.steps == 10  # no further than the data


class Heard:
    """What ranks have said, for all."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def hear(self) -> int:
        return self.said[-1] if self.said else 0

    def say(self, batches: int) -> None:
        self.said.append(batches)


@pytest.mark.parametrize("steps", [(4, 4), (1, 4, 4), (4, 4, 3), (1, 1)])
def test_a_rank_that_has_made_no_step_yet_counts_as_the_others(steps: tuple[int, ...]) -> None:
    """And when it makes its first, which may be of fewer batches, it has not gone further than they have."""
    heard = Heard()
    fast, slow = ((FleetProgress(2), Progress(math.inf)) for _ in range(2))
    for fleet, _ in (fast, slow):
        fleet.begin_loop(1, 200, 200, heard)
    for batches in steps:
        fast[0].stepped(batches)
        for fleet, progress in (fast, slow):
            update(progress, fleet, 8)
        assert slow[0].position == fast[0].position
    slow[0].stepped(steps[0])
    update(slow[1], slow[0], 8)
    assert slow[0].position == (len(steps) + 1) * 8 / (2 * max(steps))
    assert heard.said == ([4] if max(steps) > 1 else [])


def test_what_is_said_of_one_loop_holds_for_the_next_until_a_step_shows_something_else() -> None:
    fleet, progress = FleetProgress(1), Progress(math.inf)
    for batches, known in ((4, 1), (2, 4)):
        heard = Heard()
        fleet.begin_loop(1, math.inf, math.inf, heard)
        before = fleet.position
        update(progress, fleet, 8)
        assert fleet.position == before + 8 / known
        fleet.stepped(batches)
        update(progress, fleet, 8)
        assert fleet.position == before + 16 / batches
        fleet.end_loop(1)
        assert heard.said == [batches]
