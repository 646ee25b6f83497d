"""The order in which the layers of a gradient are summed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.engines.sum_order import SumOrder, launch_order

READY = [0.2, 0.4, 0.6, 0.8, 1.0]
EQUAL = [1.0] * 5


# Of times that differ by less than a rounding, either may be taken for the earlier: whole hundredths differ by more.
TIMES = st.integers(1, 100).map(lambda hundredths: hundredths / 100)


@given(st.lists(st.tuples(TIMES, st.floats(0.1, 10)), min_size=1, max_size=12), st.floats(0, 50))
def test_every_bucket_leaves_once_and_the_first_is_the_first_that_is_ready(buckets, sum_s):
    ready = sorted(share for share, _ in buckets)
    order = launch_order(ready, [size for _, size in buckets], sum_s)
    assert sorted(order) == list(range(len(buckets)))
    assert ready[order[0]] == ready[0]
    # Behind the lowest, all are ready: then it goes up from layer to layer, as the forward pass does.
    after = order[order.index(len(ready) - 1) :]
    assert list(after) == sorted(after, reverse=True)


def test_sums_that_keep_up_go_in_the_order_of_the_backward_pass():
    assert launch_order(READY, EQUAL, 0.9) == (0, 1, 2, 3, 4)


def test_what_there_is_no_time_for_is_in_between():
    assert launch_order(READY, EQUAL, 2.0) == (0, 2, 4, 3, 1)
    assert launch_order(READY, EQUAL, 50.0) == (0, 4, 3, 2, 1)


@pytest.mark.parametrize("sum_s", [0.5, 1.5, 2.5, 8.0])
def test_it_finds_how_long_sums_take_and_follows(sum_s):
    """As if sums took so long: what is over at the end of the backward pass is what there was time for."""
    order = SumOrder(READY, EQUAL)

    def through(sum_s: float) -> float:
        time, done = 0.0, 0
        for number in order.order[: order.order.index(4)]:
            time = max(time, READY[number]) + sum_s / 5
            done += time <= 1
        return done / 5

    for length in (sum_s, 0.3):
        for _ in range(30):
            order.learn(through(length))
        # Within a bucket of the order that would be chosen if it were known.
        best = launch_order(READY, EQUAL, length)
        assert abs(order.order.index(4) - best.index(4)) <= 1
