"""Where ranks are: they agree, or the one that is elsewhere is named."""

from __future__ import annotations

import pytest

from ownpace.engines.process.presence.roll import LEAVE, LOOP, Roll, ordinal
from ownpace.engines.process.talk.control import Refuse
from ownpace.engines.process.talk.rank_control import Agreed, Together

EVERY = "every rank must run the same loops"
HOW = "end them with updates=…, or by fleet.updates, not after N batches of one rank"
OVER = "loop over fleet.batches"


def act(what: str, number: int = 1, loops: int = 1, **fingerprint: str) -> Together:
    return Together(number, what, loops, fingerprint)


def told(*acts: Together) -> Agreed | Refuse | None:
    """What the last of these ranks, each with its act, leads to."""
    roll = Roll(len(acts))
    answers = [roll.take(rank, each) for rank, each in enumerate(acts)]
    assert answers[:-1] == [None] * (len(acts) - 1)
    return answers[-1]


def test_ranks_that_come_to_the_same_place_agree():
    assert told(act(LOOP, 3, epochs="2"), act(LOOP, 3, epochs="2")) == Agreed(3, [0, 1])
    roll = Roll(2)
    assert roll.take(1, act(LOOP, 1)) is None
    assert roll.take(1, act(LEAVE, 2)) is None  # it is ahead: nobody has come there
    assert roll.take(0, act(LOOP, 1)) == Agreed(1, [0, 1])


@pytest.mark.parametrize(
    ("acts", "message"),
    [
        (
            [act(LOOP, loops=3), act(LEAVE, loops=2)],
            "rank 1 left after 2 loops over fleet.batches, rank 0 began its third loop over fleet.batches; "
            f"{EVERY}: {HOW}",
        ),
        (
            [act(LOOP), act(LOOP), act(LEAVE, loops=0)],
            f"rank 2 left after 0 loops over fleet.batches, ranks 0, 1 began their first {OVER}; {EVERY}: {HOW}",
        ),
        (
            [act("fleet.reduce(op='mean')"), act("fleet.barrier")],
            f"rank 0 called fleet.reduce(op='mean'), rank 1 called fleet.barrier; {EVERY} and calls in the same order",
        ),
        (
            [act("fleet.barrier"), act(LOOP, loops=2)],
            f"rank 0 called fleet.barrier, rank 1 began its second {OVER}; {EVERY} and calls in the same order",
        ),
    ],
)
def test_ranks_at_different_places_are_named(acts, message):
    assert told(*acts) == Refuse(message)


def test_a_rank_that_is_elsewhere_is_named_before_the_others_have_come():
    roll = Roll(3)
    assert roll.take(0, act(LOOP)) is None
    assert isinstance(roll.take(2, act(LEAVE)), Refuse)


def test_loops_that_differ_are_refused():
    words = "the samples of rank 1 is 9, that of rank 0 is 8; start all of them alike"
    first = [act(LOOP, samples=size) for size in ("8", "9")]
    assert told(*first) == Refuse(f"the ranks do not fit together: {words}")
    second = [act(LOOP, loops=2, samples=size) for size in ("8", "9")]
    assert told(*second) == Refuse(f"the ranks do not fit together in their second loop over fleet.batches: {words}")


def test_ranks_that_are_waited_for_are_named_once():
    now = 0.0
    roll = Roll(3, lambda: now)
    roll.take(1, act(LOOP, loops=2))
    now = 9.0
    assert roll.late() == []
    now = 11.0
    assert roll.late() == ["rank 1 began its second loop over fleet.batches; still waiting for ranks 0, 2 after 10 s"]
    assert roll.late() == []


def test_numbers_in_words():
    assert [ordinal(number) for number in (1, 10, 11, 22, 113)] == ["first", "tenth", "11th", "22nd", "113th"]


def test_ranks_go_on_without_one_that_is_gone_and_name_no_other():
    roll = Roll(3)
    assert roll.take(0, act(LOOP, 1, epochs="1")) is None
    assert roll.take(2, act(LOOP, 1, epochs="1")) is None
    assert roll.lose(1) == Agreed(1, [0, 2])
    assert roll.take(0, act("fleet.barrier", 2)) is None
    assert roll.take(2, act("fleet.barrier", 2)) == Agreed(2, [0, 2])
    roll.take(0, act(LOOP, 3, epochs="1"))
    refused = roll.take(2, act(LOOP, 3, epochs="2"))
    assert isinstance(refused, Refuse)
    assert "the epochs of rank 2 is 2, that of rank 0 is 1" in refused.message
    assert roll.past == [(LOOP, [0, 2]), ("fleet.barrier", [0, 2])]


def test_a_rank_that_is_back_is_waited_for_or_waits_for_the_next_loop():
    roll = Roll(2)
    roll.lose(1)
    assert roll.take(0, act("fleet.barrier", 1)) == Agreed(1, [0])
    roll.rejoin(1)
    assert roll.take(0, act("fleet.reduce", 2)) is None
    # Not for this call: it is on its way to the next loop.
    assert roll.await_loop(1, act(LOOP, 0)) == Agreed(2, [0])
    assert roll.take(0, act(LOOP, 3)) == Agreed(3, [0, 1])
    assert roll.take(0, act("fleet.barrier", 4)) is None
    assert roll.take(1, act("fleet.barrier", 4)) == Agreed(4, [0, 1])
