"""What is at which place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.learning.orders import InOrder, Shuffled, WithReplacement, shares_of_data


@given(size=st.integers(1, 20), cuts=st.lists(st.integers(0, 9), max_size=12), shuffle=st.booleans())
def test_an_order_is_the_same_however_it_is_cut(size, cuts, shuffle):
    order, whole = (Shuffled(size, 1, 2) if shuffle else InOrder(size) for _ in range(2))
    found, place = [], 0
    for count in cuts:
        found += order.at(place, count)
        place += count
    assert found == list(whole.at(0, place))
    for start in range(0, place - size + 1, size):
        assert sorted(found[start : start + size]) == list(range(size))


def test_draws_depend_on_their_place_alone():
    one, again, other = (WithReplacement(1000, 0, number) for number in (1, 1, 2))
    first = one.at(0, 20)
    assert one.at(20, 20) != first
    assert again.at(0, 20) == first != other.at(0, 20)


@given(size=st.integers(1, 30), num_workers=st.integers(1, 5), epochs=st.integers(1, 3), shuffle=st.booleans())
def test_shares_have_places_of_their_own_and_all_samples_together(size, num_workers, epochs, shuffle):
    shares = [shares_of_data(size, epochs, (rank, num_workers), (0, 1), shuffle=shuffle) for rank in range(num_workers)]
    assert [share.start for share in shares[1:]] == [share.stop for share in shares[:-1]]
    assert shares[-1].stop == size * epochs
    found = [index for share in shares for index in share.at(share.start, share.stop - share.start)]
    assert sorted(map(int, map(str, found))) == sorted(list(range(size)) * epochs)


def test_what_is_left_of_all_shares_can_be_taken_by_any():
    shares = [shares_of_data(10, 2, (rank, 3), (7, 1), shuffle=True) for rank in range(3)]
    assert [(one.start, one.stop) for one in shares] == [(0, 8), (8, 14), (14, 20)]
    everything = shares[0].at(0, 20)
    assert Counter(everything) == dict.fromkeys(range(10), 2)
    assert shares[2].at(6, 9) == everything[6:15]
    assert shares[1].end == 20
