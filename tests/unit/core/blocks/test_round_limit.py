"""How long a worker goes on alone."""

from __future__ import annotations

import math

import pytest

from ownpace.core.blocks.round_limit import MOST_BATCHES, RoundLimit
from ownpace.core.contract.errors import InputError


def test_the_bound_is_divided_by_pace() -> None:
    limit = RoundLimit(80, steps=2, batch_size=8, num_workers=3)
    assert [limit.part(rank) for rank in range(3)] == [27, 27, 26]
    limit.follow([6.0, 1.0, 1.0])
    assert [limit.part(rank) for rank in range(3)] == [60, 10, 10]
    assert RoundLimit(0, steps=2, batch_size=8, num_workers=3).part(0) is None
    assert RoundLimit(None, steps=2, batch_size=8, num_workers=3).part(0) == MOST_BATCHES * 8
    # Whoever asks for long rounds has room for them.
    assert RoundLimit(None, steps=500, batch_size=8, num_workers=3).part(0) == 1000 * 8
    with pytest.raises(InputError, match="max_batch is 2, but an update has a sample of each of 3 workers"):
        RoundLimit(2, steps=2, batch_size=8, num_workers=3)


def test_a_late_sum_is_waited_for_and_slow_ones_are_not() -> None:
    limit = RoundLimit(0, steps=2, batch_size=8, num_workers=2)
    assert limit.within(math.inf, 16) == 64
    limit.learn(64, waited=True)
    assert limit.within(math.inf, 16) == 1024  # it grows fast
    limit.learn(512, waited=True)
    assert limit.within(math.inf, 16) == 8192
    limit.learn(40, waited=False)
    assert limit.within(math.inf, 16) == 80  # now it is known, and what was only more than enough is forgotten
    for _ in range(4):
        limit.learn(40, waited=False)
    assert limit.within(math.inf, 16) == 80
    assert limit.within(60, 16) == 60
    limit.learn(80, waited=True)
    limit.learn(80, waited=True)
    assert limit.within(math.inf, 16) == 80  # two late sums change nothing
    limit.learn(80, waited=True)
    assert limit.within(math.inf, 16) == 320  # three do
    for _ in range(5):
        limit.learn(0, waited=False)
    assert limit.within(math.inf, 16) == 32  # two rounds of the least length always are in order
