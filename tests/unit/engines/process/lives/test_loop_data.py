"""Where a rank's loops are when it meets others that are further, or comes back."""

from __future__ import annotations

import pytest

from ownpace.engines.process.lives.loop_data import LoopData


def at(generation: int, begun: int) -> LoopData:
    """A rank that is in no loop."""
    data = LoopData()
    data.generation, data.begun = generation, begun
    return data


def test_a_rank_before_a_loop_that_others_are_in_deals_what_they_have_left():
    data = at(2, 2)
    assert data.catch_up(6, 3, [(5, 9)], is_new=False)
    assert data.left_of_next([(0, 9)]) == [(5, 9)]
    assert not data.catch_up(5, 2, [], is_new=False)
    assert data.left_of_next([(0, 9)]) == [(0, 9)]


@pytest.mark.parametrize(
    ("stage", "begun", "generation", "counted", "missed"),
    [
        (8, 2, 3, 1, False),  # they are in its second loop, the fourth of a run that was resumed
        (9, 2, 4, 2, True),  # it is over
        (7, 1, 3, 1, False),  # they are about to begin it
    ],
)
def test_a_rank_that_is_back_counts_on_from_where_the_others_are(stage, begun, generation, counted, missed):
    data = at(0, 1)
    data.resumed = [(0, 3)]
    assert data.catch_up(stage, begun, [(1, 2)], is_new=True) is (stage == 8)
    assert (data.generation, data.begun, data.is_missed) == (generation, counted, missed)
    assert data.left_of_next([(0, 9)]) == ([(1, 2)] if stage == 8 else [(0, 9)])
