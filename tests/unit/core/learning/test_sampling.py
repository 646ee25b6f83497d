"""Which samples a worker gets next."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.learning.sampling import Permutations, Queue, make_sampler


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


@given(
    size=st.integers(1, 30),
    starts=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 50)), max_size=8),
    seed=st.integers(0, 9),
)
def test_any_position_of_an_order_can_be_asked_for_in_any_order(size, starts, seed):
    whole = Permutations(size, seed).indices(0, 250)
    order = Permutations(size, seed)
    for start, samples in starts:
        assert torch.equal(order.indices(start, samples), whole[start : start + samples])


def test_epochs_and_seeds_have_orders_of_their_own():
    order = Permutations(50, 0).indices(0, 100)
    assert not torch.equal(order[:50], order[50:])
    assert not torch.equal(order, Permutations(50, 1).indices(0, 100))


def test_processes_share_a_queue_through_one_counter():
    taken = 0

    def take(samples):
        nonlocal taken
        taken += samples
        return taken - samples

    queues = [Queue(20, 0, take) for _ in range(2)]
    drawn = torch.cat([queues[number % 2].draw(0, 3) for number in range(6)])
    assert torch.equal(drawn, Queue(20, 0).draw(0, 18))


@given(
    size=st.integers(4, 100),
    start=st.floats(0, 1),
    stop=st.floats(0, 1),
    kind=st.sampled_from(["queue", "iid", "shards"]),
)
def test_only_shards_can_be_assigned_and_are_never_empty(size, start, stop, kind):
    start, stop = sorted((start, stop))
    sampler, untouched = (make_sampler(kind, size, 2, seed=3) for _ in range(2))
    sampler.assign(0, start, stop)
    drawn = sampler.draw(0, 2 * size)
    if kind == "shards":
        first = min(round(start * size), size - 1)
        assert len(set(drawn.tolist())) == max(1, round(stop * size) - first)
    else:
        assert torch.equal(drawn, untouched.draw(0, 2 * size))


@given(size=st.integers(4, 60), num_workers=st.integers(1, 4), cut=st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_shares_that_are_assigned_side_by_side_cover_everything_once(size, num_workers, cut):
    edges = [0.0, *sorted(cut)[: num_workers - 1], 1.0]
    sizes = [round(b * size) - round(a * size) for a, b in itertools.pairwise(edges)]
    sampler = make_sampler("shards", size, num_workers, seed=0)
    for rank in range(num_workers):
        sampler.assign(rank, edges[rank], edges[rank + 1])
    drawn = [set(sampler.draw(rank, max(1, sizes[rank])).tolist()) for rank in range(num_workers)]
    assert set.union(*drawn) == set(range(size))
    if all(sizes):  # a share of nothing is given one sample, which is another worker's, too
        assert [len(share) for share in drawn] == sizes
        assert sum(sizes) == size


@given(
    draws=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=20),
    shares=st.tuples(*[st.floats(0, 1)] * 3),
    more=st.integers(1, 40),
)
def test_what_was_drawn_and_not_used_is_dealt_first_and_nothing_twice(draws, shares, more):
    queue = Queue(10, 3)
    drawn: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for rank, samples in draws:
        drawn[rank] += queue.draw(rank, samples).tolist()
    used = [int(share * len(drawn[rank])) for rank, share in enumerate(shares)]
    left = queue.left(used)
    following = Queue(10, 3, left=left)
    given_back = sum(len(drawn[rank]) - used[rank] for rank in drawn)
    again = following.draw(0, given_back + more).tolist()
    learnt = [index for rank in drawn for index in drawn[rank][: used[rank]]]
    total = len(learnt) + given_back + more
    assert sorted(learnt + again) == sorted(Queue(10, 3).draw(0, total).tolist())
    # And so on: what is left of that is as exact.
    rest = Queue(10, 3, left=following.left([given_back])).draw(0, more).tolist()
    assert rest == again[given_back:]


@pytest.mark.parametrize("kind", ["queue", "iid", "shards"])
def test_visits_come_on_top_of_the_same_draws(kind):
    plain, numbered = (make_sampler(kind, 10, 2, seed=1, visits=visits) for visits in (False, True))
    for rank, samples in ((0, 7), (1, 9), (0, 12), (1, 20)):
        assert torch.equal(numbered.draw(rank, samples) % 10, plain.draw(rank, samples))
    # No sample is met twice on the same visit: that is what makes every change of it a new one.
    again = make_sampler(kind, 10, 2, seed=1, visits=True)
    drawn = torch.cat([again.draw(0, samples) for samples in (3, 8, 30)]).tolist()
    assert len(set(drawn)) == len(drawn)
    if kind == "queue":  # epoch after epoch: a place of the shared order is always the same visit
        assert sorted(drawn) == [*range(40), *sorted(drawn[40:])]
        left = make_sampler(kind, 10, 2, seed=1, left=[(25, 28), (40, 1 << 62)], visits=True).draw(1, 4)
        assert left.tolist() == [*drawn[25:28], drawn[40]]


@pytest.mark.parametrize("kind", ["iid", "shards"])
def test_a_worker_goes_on_where_it_was(kind):
    first, second = (make_sampler(kind, 40, 2, seed=1, visits=True) for _ in range(2))
    if kind == "shards":
        first.assign(1, 0.25, 0.5)
    first.draw(1, 7)
    second.go_on(1, first.position(1))
    assert torch.equal(first.draw(1, 9), second.draw(1, 9))


def test_shares_among_another_number_of_workers_begin_anew():
    two, three = make_sampler("shards", 40, 2, seed=1), make_sampler("shards", 40, 3, seed=1)
    two.draw(1, 7)
    three.go_on(1, two.position(1))
    assert torch.equal(three.draw(1, 9), make_sampler("shards", 40, 3, seed=1).draw(1, 9))
