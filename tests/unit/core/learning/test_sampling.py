"""Which samples a worker gets next."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.learning.sampling import Queue, make_sampler


@given(size=st.integers(1, 40), chunks=st.lists(st.integers(1, 30), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_queue_hands_out_every_sample_once_an_epoch_in_chunks_of_any_size(size, chunks, seed):
    queue = Queue(size, seed)
    drawn = torch.cat([queue.draw(index % 3, chunk) for index, chunk in enumerate(chunks)]).tolist()
    assert len(drawn) == sum(chunks)
    for start in range(0, len(drawn) - size + 1, size):
        assert sorted(drawn[start : start + size]) == list(range(size))
    rest = Counter(drawn[len(drawn) // size * size :])
    assert max(rest.values(), default=0) <= 1


def test_shards_are_disjoint_and_cover_everything():
    sampler = make_sampler("shards", 10, 3, seed=0)
    drawn = [set(sampler.draw(rank, 12).tolist()) for rank in range(3)]
    assert set.union(*drawn) == set(range(10))
    assert sum(map(len, drawn)) == 10


def test_iid_draws_differ_by_worker_and_seed():
    first = make_sampler("iid", 1000, 2, seed=0)
    again = make_sampler("iid", 1000, 2, seed=0)
    other = make_sampler("iid", 1000, 2, seed=1)
    a, b = first.draw(0, 50), first.draw(1, 50)
    assert not torch.equal(a, b)
    assert torch.equal(a, again.draw(0, 50))
    assert not torch.equal(a, other.draw(0, 50))
