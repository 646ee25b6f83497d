"""The drop-in on two ranks, under torchrun."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.process.ranks import run
from tests.process.scenarios import BROKEN, IN_A_LOOP
from tests.process.small_net import (
    MakeOptimizer,
    Updates,
    adamw,
    close,
    flat,
    loss_in_bfloat16,
    make_net,
    on_one_machine,
    sgd,
    two_groups,
)
from tests.process.started import PATIENCE_S, Start
from torch import Tensor

import ownpace

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def updates_of(ranks: Sequence[Any], name: str) -> Updates:
    """The batches of each synchronous update. Who has no data left takes no part."""
    together = zip_longest(*(rank[name]["updates"] for rank in ranks), fillvalue=[])
    return [[*chain(*update)] for update in together]


def all_indices(ranks: Sequence[Any], name: str, number: int = 0) -> list[int]:
    return sorted(chain.from_iterable(chain.from_iterable(rank[name]["loops"][number] for rank in ranks)))


def same_weights(ranks: Sequence[Any], name: str) -> Tensor:
    assert ranks[0][name]["weights"] == ranks[1][name]["weights"], name
    return torch.tensor(ranks[0][name]["weights"])


@pytest.mark.slow
def test_every_algorithm_trains_in_a_loop(start: Start, tmp_path: Path) -> None:
    """Every sample is handed out once an epoch, and all ranks end with the same model."""
    ranks = run("every_algorithm", start, tmp_path)
    for label, (name, _) in IN_A_LOOP.items():
        assert all_indices(ranks, label) == sorted([*range(61)] * 2), label
        assert not torch.equal(same_weights(ranks, label), flat(make_net())), label
        summary, other = (rank[label]["summary"] for rank in ranks)
        assert summary == other, label
        assert summary["reason"] == "finished", label
        assert summary["replicas_identical"] is (True if ownpace.ALGORITHMS[name].replicas_identical else None), label
        if name == "backup":  # who is late is dropped
            assert 0 < summary["samples"] <= 122
        else:
            assert summary["samples"] == 122, label
    for rank in ranks:
        assert rank["layered"].startswith("this algorithm loads its samples itself")
        assert "\n" not in rank["layered"]


@pytest.mark.slow
def test_a_scheduler_stepped_once_a_batch_leaves_all_ranks_with_the_same_model(start: Start, tmp_path: Path) -> None:
    """Though one rank has twice as many batches as the other."""
    ranks = run("unequal_batches", start, tmp_path)
    counts = [len(rank["scheduled"]["loops"][0]) for rank in ranks]
    assert counts[0] > counts[1]
    same_weights(ranks, "scheduled")
    assert ranks[0]["warned"] == []
    (warned,) = ranks[1]["warned"]  # once, though every update differs
    assert "lr of parameter group 0 is 0.1 on this rank and 0.05 on rank 0" in warned
    assert "fleet.schedule" in warned


@pytest.mark.slow
def test_servers_wait_for_all_in_the_second_loop_too(start: Start, tmp_path: Path) -> None:
    ranks = run("second_loops", start, tmp_path)
    for name in ("od", "backup"):
        same_weights(ranks, name)
        assert ranks[0][name]["summary"]["samples"] == 128
        assert ranks[0][name]["summary"]["updates"] == 8, name  # four a loop, of a batch of each rank


@pytest.mark.slow
def test_groups_are_found_in_the_second_loop_too(start: Start, tmp_path: Path) -> None:
    ranks = run("grouped_loops", start, tmp_path)
    same_weights(ranks, "grouping")
    assert 16 in ranks[0]["first"]
    assert 16 in ranks[0]["second"]


def test_two_synchronous_ranks_learn_what_one_machine_does(start: Start, tmp_path: Path) -> None:
    ranks = run("sync_loops", start, tmp_path)

    def check(name: str, size: int, make_optimizer: MakeOptimizer = sgd, **options: Any) -> Updates:
        updates = updates_of(ranks, name)
        close(same_weights(ranks, name), on_one_machine(size, updates, make_optimizer, **options))
        summary = ranks[0][name]["summary"]
        assert summary == ranks[1][name]["summary"]
        assert summary["samples"] == sum(len(batch) for update in updates for batch in update)
        assert summary["updates"] == len(updates)
        assert summary["staleness"] == {"mean": 0.0, "max": 0}
        assert summary["reason"] == "finished"
        assert list(summary["busy"]) == ["worker-0", "worker-1"]
        assert all(0 <= share <= 1 for share in summary["busy"].values())
        return updates

    updates = check("uneven", 53)
    assert sum(len(batch) for update in updates for batch in update) == 106
    assert len({sum(map(len, update)) for update in updates}) > 1
    check("uneven adamw", 45, adamw)
    updates = check("uneven shards", 37, two_groups)
    assert [len(batch) for batch in updates[-1]] == [3, 2]
    check("one batch", 8)
    assert sorted(len(rank["one batch"]["loops"][0]) for rank in ranks) == [0, 1]
    check("balanced", 101)
    computed = [len(list(chain(*rank["balanced"]["loops"][0]))) for rank in ranks]
    assert computed[1] > computed[0], computed  # rank 0 is slow
    assert len(check("accumulated", 64)) == 2
    assert len(check("one batch left over", 48)) == 2
    check("clipped each", 32, clip_each=0.1)
    check("clipped sum", 32, clip_sum=0.1)
    for name in ("scheduled", "scheduled first"):
        check(name, 32, two_groups, gamma=0.7)
        assert ranks[0][name]["rates"] == pytest.approx([0.05 * 0.7**2, 0.2 * 0.7**2])
    check("bfloat16", 32, loss=loss_in_bfloat16)

    same_weights(ranks, "normed")
    first, second = (rank["normed"]["buffers"] for rank in ranks)
    assert first == second
    assert max(map(abs, first[0])) > 0

    weights = same_weights(ranks, "scaled")
    assert torch.isfinite(weights).all()
    assert [rank["scaled"]["scale"] for rank in ranks] == [64.0, 32.0]
    assert [rank["scaled"]["updates"] for rank in ranks] == [4, 4]
    assert all_indices(ranks, "scaled") == list(range(64))


@pytest.mark.slow
def test_samples_are_handed_out_as_documented(start: Start, tmp_path: Path) -> None:
    ranks = run("sampling_loops", start, tmp_path)
    for name in ("queue", "queue, loaded by others", "queue, async", "queue, stale"):
        assert all_indices(ranks, name) == sorted([*range(61)] * 3), name
        assert ranks[0][name]["summary"]["samples"] == 183, name
        assert ranks[0][name]["summary"] == ranks[1][name]["summary"], name
        same_weights(ranks, name)
        busy = ranks[0][name]["summary"]["busy"]
        worked = [bool(rank[name]["loops"][0]) for rank in ranks]  # who comes late may find the queue empty
        assert [share > 0 for share in busy.values()] == worked, (name, busy)
    for name in ("calls", "async calls"):
        for number in range(3):
            assert all_indices(ranks, name, number) == [*range(40)], (name, number)
        assert ranks[0][name]["summary"]["samples"] == 120
        same_weights(ranks, name)

    drawn = [list(chain(*rank["iid"]["loops"][0])) for rank in ranks]
    assert len(drawn[0]) + len(drawn[1]) == 128
    assert set(chain(*drawn)) <= set(range(64))
    assert all_indices(ranks, "iid") != sorted([*range(64)] * 2)  # with replacement
    assert drawn[0][:8] != drawn[1][:8]

    shares = [[set(chain(*loop)) for loop in rank["shards"]["loops"]] for rank in ranks]
    assert [len(share[0]) for share in shares] == [33, 32]
    assert shares[0][0].isdisjoint(shares[1][0])
    for rank, share in zip(ranks, shares, strict=True):
        assert share[0] == share[1]  # the same in every loop
        for loop in rank["shards"]["loops"]:
            assert sorted(chain(*loop)) == sorted([*share[0]] * 2)
        assert rank["shards"]["loops"][0] != rank["shards"]["loops"][1]  # in another order


@pytest.mark.slow
def test_a_break_ends_the_loop_for_all_and_the_next_loop_is_whole(start: Start, tmp_path: Path) -> None:
    ranks = run("broken_loops", start, tmp_path)
    for number, algorithm in enumerate(BROKEN):
        assert len(ranks[number % 2][algorithm]["loops"][0]) == 2
        assert all_indices(ranks, algorithm, 1) == [*range(80)], algorithm
        same_weights(ranks, algorithm)
        assert ranks[0][algorithm]["summary"] == ranks[1][algorithm]["summary"]
    same_weights(ranks, "held")
    assert [rank["held"]["steps"] for rank in ranks] == [2, 3]


@pytest.mark.slow
def test_servers_keep_the_model_of_two_asynchronous_ranks(start: Start, tmp_path: Path) -> None:
    ranks = run("async_loops", start, tmp_path)
    for name in ("two servers", "normed", "one batch left over", "watched"):
        same_weights(ranks, name)
    assert ranks[0]["two servers"]["summary"]["samples"] == 64
    assert ranks[0]["two servers"]["summary"]["updates"] == 8
    assert ranks[0]["normed"]["buffers"] == ranks[1]["normed"]["buffers"]
    left_over = ranks[0]["one batch left over"]
    assert left_over["summary"]["samples"] == 64  # of each half's three batches, two, in each of two loops
    assert [len(loop) for loop in left_over["loops"]] == [3, 3]
    assert ranks[1]["watched"]["saw others' updates"]
    assert ranks[1]["watched"]["came back to its own"]
    for rank in ranks:
        assert rank["watched"]["after the loop"]
        assert rank["watched"]["after the fleet"]
