"""What a rank that was started again passes at once, and where it joins."""

from __future__ import annotations

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.presence.past import PastActs
from ownpace.engines.process.presence.roll import JOIN, LOOP
from ownpace.engines.process.talk.rank_control import Past, Together

ACTS = [JOIN, LOOP, "fleet.barrier", LOOP]


def told(**progress: float) -> PastActs:
    return PastActs(Past(ACTS, [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]], {"epochs": "2"}, progress), 1)


def test_the_same_calls_in_the_same_order_are_passed():
    past = told(in_loop=1.0, begun=2)
    for number, what in enumerate(ACTS, 1):
        past.check(number, Together(number, what, 0, {}))
    assert (past.number, past.loops, past.last_loop, past.there(3)) == (4, 2, 4, [0, 2])
    with pytest.raises(
        InputError, match=r"rank 1 called fleet.reduce, where rank 0 called fleet.barrier; every rank must"
    ):
        past.check(3, Together(3, "fleet.reduce", 1, {}))


def test_the_loop_that_runs_has_to_be_the_same():
    told().check_loop({"epochs": "2"})
    with pytest.raises(InputError, match="the epochs of rank 1 is 3, that of rank 0 is 2"):
        told().check_loop({"epochs": "3"})


@pytest.mark.parametrize(
    ("progress", "skips", "begun", "number"),
    [
        ({"in_loop": 1.0, "begun": 2}, False, 0, 1),
        ({"in_loop": 1.0, "begun": 2}, True, 0, 2),  # the second runs
        ({"in_loop": 0.0, "begun": 2}, True, 0, 3),  # it is over: the next
        ({"in_loop": 0.0, "begun": 1}, True, 0, 2),  # all have agreed on it, and rank 0 is about to begin it
        ({"in_loop": 1.0, "begun": 2, "before": 5}, True, 0, 7),  # of a run that went on from a checkpoint
    ],
)
def test_which_loop_a_script_begins_with(progress, skips, begun, number):
    past = told(**progress)
    past.skips = skips
    assert past.number_of_next(begun) == number
