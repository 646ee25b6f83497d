"""Which samples are left."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.learning.claims import ENDLESS, Claim, left_over, number_of, within

CHUNKS = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2)), max_size=20)


def places(ranges):
    return [place for start, stop in ranges for place in range(start, stop)]


def claims_of(chunks, total):
    """As workers make them from one count, and the places that each took, in order."""
    claims, start = [], 0
    taken: list[list[int]] = [[], [], []]
    for count, rank in chunks:
        claims.append(Claim(start, count, rank))
        taken[rank] += range(start, min(start + count, total))
        start += count
    return claims, taken


@given(total=st.integers(0, 60), chunks=CHUNKS, data=st.data())
def test_what_is_left_is_what_no_rank_has_used(total, chunks, data):
    claims, taken = claims_of(chunks, total)
    applied = [data.draw(st.integers(0, len(mine))) for mine in taken]
    used = {place for mine, count in zip(taken, applied, strict=True) for place in mine[:count]}
    left = left_over(total, claims, applied)
    assert places(left) == [place for place in range(total) if place not in used]
    # Ranges are as few as can be: two that touch are one.
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(left))


@given(total=st.integers(1, 60), chunks=CHUNKS, data=st.data())
def test_a_run_that_went_on_twice_has_used_every_place_once(total, chunks, data):
    claims, taken = claims_of(chunks, total)
    left = left_over(total, claims, [data.draw(st.integers(0, len(mine))) for mine in taken])
    second, taken = claims_of(chunks, number_of(left))
    applied = [data.draw(st.integers(0, len(mine))) for mine in taken]
    used = [p for mine, count in zip(taken, applied, strict=True) for place in mine[:count] for p in _at(left, place)]
    again = [r for start, stop in left_over(number_of(left), second, applied) for r in within(left, start, stop)]
    assert sorted([*used, *places(again)]) == places(left)


def _at(left, place):
    return places(within(left, place, place + 1))


def test_a_stream_has_no_known_end():
    assert left_over(ENDLESS, [Claim(0, 4, 0), Claim(4, 4, 1)], [4, 1]) == [(5, ENDLESS)]
    assert within([(5, ENDLESS)], 2, 5) == [(7, 10)]
