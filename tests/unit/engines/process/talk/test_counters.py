"""Counts that all workers share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from ownpace.core.learning.claims import Claim
from ownpace.engines.process.talk.counters import Counters


@pytest.fixture(params=[False, True], ids=["one host", "several hosts"])
def two(request):
    store = dist.HashStore() if not request.param else dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    counters = [Counters(store, first=rank == 0, spans_hosts=request.param) for rank in range(2)]
    yield counters
    for each in counters:
        each.close()


def test_claims_are_what_each_rank_took(two):
    mine, theirs = two[0].claiming(1, 0), two[1].claiming(1, 1)
    assert [mine(3), theirs(5), mine(2), theirs(1)] == [0, 3, 8, 10]
    expected = [Claim(0, 3, 0), Claim(3, 5, 1), Claim(8, 2, 0), Claim(10, 1, 1)]
    assert two[0].claims(1, 2) == two[1].claims(1, 2) == expected


def test_each_loop_has_a_count_and_claims_of_its_own(two):
    assert [two[0].claiming(1, 0)(3), two[1].claiming(2, 1)(4), two[0].claiming(2, 0)(4)] == [0, 0, 4]
    assert two[0].claims(2, 2) == [Claim(0, 4, 1), Claim(4, 4, 0)]
    assert two[0].claims(3, 2) == []


def test_a_share_is_noted_without_a_count(two):
    two[1].note(1, Claim(50, 8, 1))
    assert two[0].claiming(1, 0)(2) == 0
    assert two[0].claims(1, 2) == [Claim(0, 2, 0), Claim(50, 8, 1)]


def test_taking_leaves_no_claim(two):
    take, other = two[0].taking(0), two[1].taking(0)
    assert [take(3), other(2), take(1)] == [0, 3, 5]
    assert two[0].claims(0, 2) == []


def test_no_file_is_left_behind():
    store = dist.HashStore()
    counters = Counters(store, first=True, spans_hosts=False)
    paths = [Path(path) for path in store.get("counter").decode().split("\n")]
    assert all(map(os.path.exists, paths))
    counters.claiming(0, 0)(8)
    counters.forget_path()
    assert not any(map(os.path.exists, paths))
    counters.close()
