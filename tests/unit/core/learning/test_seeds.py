"""One seed for each purpose."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.learning.seeds import Purpose, derive, seed_for

parts = st.lists(st.integers(0, 2**31), min_size=1, max_size=4)


@given(parts)
def test_a_seed_fits_every_generator(numbers: list[int]) -> None:
    assert 0 <= derive(*numbers) < 2**63
    assert derive(*numbers) == derive(*numbers)


def test_close_numbers_give_unrelated_seeds() -> None:
    seeds = {derive(*numbers) for length in (1, 2, 3) for numbers in itertools.product(range(12), repeat=length)}
    assert len(seeds) == 12 + 12**2 + 12**3
    # Of neighbours, about half of the 63 bits differ: fewer than a quarter would be a pattern.
    differing = [(derive(0, n) ^ derive(0, n + 1)).bit_count() for n in range(200)]
    assert min(differing) > 63 / 4
    assert sum(differing) / 200 == pytest.approx(31.5, abs=2)


@given(st.integers(0, 1000), st.integers(0, 100))
def test_no_purpose_disturbs_another(seed: int, rank: int) -> None:
    seeds = [seed_for(seed, purpose, *more) for purpose in Purpose for more in ((), (rank,))]
    assert len(set(seeds)) == 2 * len(Purpose)


def test_the_numbers_stay_what_they_are() -> None:
    """Else every run that was ever made with a seed would become another."""
    assert derive(0) == 8147104208329303767
    assert seed_for(0, Purpose.QUEUE, 1) == derive(0, 0, 1)
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "QUEUE": 0,
        "IID": 1,
        "SHARDS": 2,
        "SHARD_ORDER": 3,
        "JITTER": 4,
        "MODEL": 5,
        "LOOP_QUEUE": 6,
        "LOOP_IID": 7,
        "LOOP_SHARD_ORDER": 8,
        "LOOP_SAMPLER": 9,
        "LOOP_STREAM": 10,
        "LOOP_FUNCTION": 11,
        "LOOP_WORKERS": 12,
        "AUGMENTATION": 13,
    }
