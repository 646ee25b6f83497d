"""A server gathers whole groups: who is waited for, and who is not."""

from __future__ import annotations

import torch

from ownpace.core.blocks.group_barrier import Gathered, Gathering
from ownpace.core.contract.values import Address, Gradient, Message, Shard

WORKERS = [Address("worker", rank, f"worker-{rank}", Shard(0, 0, 1)) for rank in range(4)]


def pushed(rank: int, group: int, size: int, value: float = 1.0) -> Message:
    gradient = Gradient(torch.tensor([value]), 1, (0,), 0.0)
    return Message(WORKERS[rank], gradient, 0, False, {"group": group, "size": size})


def left(rank: int, group: int, size: int) -> Message:
    return Message(WORKERS[rank], None, 0, False, {"leaves": group, "size": size})


def ranks(gathered: Gathered | None) -> list[int]:
    assert gathered is not None
    return [worker.index for worker in gathered.workers]


def test_a_group_is_complete_with_its_last_push_and_summed_by_rank() -> None:
    gathering = Gathering()
    assert gathering.take(pushed(2, group=7, size=2)) is None
    assert gathering.take(pushed(1, group=8, size=2)) is None  # another group is another barrier
    gathered = gathering.take(pushed(0, group=7, size=2, value=2.0))
    assert ranks(gathered) == [0, 2]
    assert gathered.group == 7
    assert (gathered.total.total.item(), gathered.total.samples) == (3.0, 2)


def test_a_worker_that_leaves_completes_what_waits_for_it() -> None:
    gathering = Gathering()
    assert gathering.take(pushed(0, group=7, size=2)) is None
    assert ranks(gathering.take(left(1, group=7, size=2))) == [0]
    assert ranks(gathering.take(pushed(0, group=7, size=2))) == [0]  # and is not waited for again
    assert gathering.take(pushed(2, group=0, size=2)) is None  # in other groups, all are still waited for
    assert gathering.take(left(0, group=7, size=2)) is None  # nothing is left to gather


def test_who_leaves_after_its_last_push_counts_once() -> None:
    gathering = Gathering()
    assert gathering.take(pushed(0, group=0, size=3)) is None
    assert gathering.take(left(0, group=0, size=3)) is None
    assert gathering.take(pushed(1, group=0, size=3)) is None
    assert ranks(gathering.take(pushed(2, group=0, size=3))) == [0, 1, 2]


def test_a_push_that_is_one_ahead_waits_for_the_next_round() -> None:
    gathering = Gathering()
    assert gathering.take(pushed(0, group=0, size=2, value=1.0)) is None
    assert gathering.take(pushed(0, group=0, size=2, value=10.0)) is None
    first = gathering.take(pushed(1, group=0, size=2, value=2.0))
    assert first is not None
    assert first.total.total.item() == 3.0
    second = gathering.take(pushed(1, group=0, size=2, value=20.0))
    assert second is not None
    assert second.total.total.item() == 30.0
