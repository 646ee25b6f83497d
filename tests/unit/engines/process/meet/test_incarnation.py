"""All ranks of one start agree on a mark, whatever earlier ones or strangers left in the store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ownpace.core.contract.errors import InputError, MachineDied
from ownpace.engines.process.meet.incarnation import agree_on_mark, is_back, new_mark, readmit
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store
from ownpace.engines.process.presence.readmission import Readmission


def meet(store: dist.Store, marks: list[str], late: int | None = None) -> list[str]:
    """What each rank takes for the mark; the late one comes when all others wait for it."""
    with ThreadPoolExecutor(len(marks)) as ranks:
        agreed = {
            rank: ranks.submit(agree_on_mark, store, rank, len(marks), mine, 60)
            for rank, mine in enumerate(marks)
            if rank != late
        }
        if late is not None:
            while not store.check(["roll"]):
                threading.Event().wait(0.01)
            agreed[late] = ranks.submit(agree_on_mark, store, late, len(marks), marks[late], 60)
        return [agreed[rank].result() for rank in range(len(marks))]


def test_a_second_start_on_the_same_store_takes_nothing_of_the_first():
    store = dist.HashStore()
    first, second = ([new_mark() for _ in range(3)] for _ in range(2))
    assert meet(store, first) == 3 * first[:1]
    # Rank 2 comes last: until then, rank 0 finds what is left of the dead one in its place.
    assert meet(store, second, late=2) == 3 * second[:1]
    # Fewer, as after the loss of a host; then all again.
    assert meet(store, first[1:]) == 2 * first[1:2]
    assert meet(store, first, late=1) == 3 * first[:1]


def test_ranks_that_find_only_what_the_dead_left_wait_for_the_living():
    store = dist.HashStore()
    meet(store, [new_mark() for _ in range(2)])
    for rank in range(2):
        with pytest.raises(MachineDied, match=r"not all 2 ranks joined within 0\.05 s"):
            agree_on_mark(store, rank, 2, new_mark(), 0.05)


@pytest.mark.parametrize("nonsense", ["", " ", "x", "- -", "\xff", "0" * 32, f"../{'0' * 29} x"])
def test_nonsense_in_the_store_is_not_taken_for_a_mark(nonsense):
    store = dist.HashStore()
    for key in ("roll", "here/1"):
        store.set(key, nonsense)
    marks = [new_mark(), new_mark()]
    assert meet(store, marks, late=1) == 2 * marks[:1]


def test_a_rank_that_is_started_again_finds_the_others_where_they_are():
    store = dist.HashStore()
    marks = [new_mark() for _ in range(3)]
    meet(store, marks)
    assert not any(is_back(store, rank, 3) for rank in range(3))
    with ThreadPoolExecutor(1) as again:
        mark = again.submit(agree_on_mark, store, 2, 3, new_mark(), 60)
        while not is_back(store, 2, 3):
            threading.Event().wait(0.01)
        assert not is_back(store, 1, 3)
        readmit(store, 2, 3)
        assert mark.result() == marks[0]
    assert not is_back(store, 2, 3)


def test_a_rank_that_is_started_again_too_late_need_not_wait():
    """Only where the store tells that rank 0 lives: an agent's may hold what dead ranks have left."""
    store, port = local_store()
    marks = [new_mark() for _ in range(2)]
    meeting = dist.PrefixStore("first", store)
    meet(meeting, marks)
    Readmission(Rendezvous(LOOPBACK, port, f"first/{marks[0]}", "secret", LOOPBACK), 2, set).close()
    with pytest.raises(InputError, match=r"takes its place in the first ownpace\.join of its script; start all"):
        agree_on_mark(meeting, 1, 2, new_mark(), 60, lives_as_long_as_rank_0=True)
    with pytest.raises(MachineDied, match="not all 2 ranks joined"):
        agree_on_mark(meeting, 1, 2, new_mark(), 0.05)
    # And where rank 0 begins anew, all do.
    again = [new_mark() for _ in range(2)]
    assert meet(meeting, again, late=1) == 2 * again[:1]
