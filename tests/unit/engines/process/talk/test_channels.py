"""Waiting for collectives of a backend that this machine does not have; and sums that are ours, not gloo's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.meet.rendezvous import LOOPBACK, local_store
from ownpace.engines.process.talk.channels import AskedWork, Channels, ExchangedSum, Wiring, finish


class SlowWork:
    """Work as NCCL has it: it may be asked any number of times, but a wait before it is done is the end."""

    def __init__(self, questions: int, failure: str = "") -> None:
        self.questions = questions
        self.failure = failure
        self.waited = 0

    def is_completed(self) -> bool:
        self.questions -= 1
        return self.questions <= 0

    def wait(self, timeout: object = None) -> None:
        assert self.questions <= 0
        self.waited += 1
        if self.failure:
            raise RuntimeError(self.failure)


def test_a_sum_that_takes_longer_than_a_tick_is_waited_for():
    work, ticks = SlowWork(questions=3000), []
    finish([AskedWork(work)], "workers", lambda: ticks.append(1))
    assert ticks
    assert work.waited == 1


def test_a_failure_is_that_of_a_member():
    with pytest.raises(PeerLost, match="a member of workers is gone: connection closed"):
        finish([AskedWork(SlowWork(1, "connection closed"))], "workers", lambda: None)


def test_small_vectors_are_exchanged_and_added_by_rank():
    """The same bits on every member: those of the sum from rank 0 on; and larger vectors go around the ring."""
    own, _ = local_store()
    torch.manual_seed(0)
    vectors = torch.randn(3, 1000) * torch.tensor([1e-4, 1.0, 1e4])[:, None]
    expected = (vectors[0] + vectors[1]) + vectors[2]

    def take_part(member: int) -> list[Tensor]:
        store: Any = dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False)
        channels = Channels("workers", member, 3, Wiring(store, "gloo", LOOPBACK, 60, direct_bytes=4000), 2)
        small, large = vectors[member].clone(), torch.cat([vectors[member], vectors[member]])
        works = [channels.all_reduce(small), channels.all_reduce(large, 1), channels.all_reduce(small[:0])]
        for each in works:
            finish(each, "workers", lambda: None)
        finish(works[0], "workers", lambda: None)  # awaited again: it must not be added again
        assert isinstance(works[0][0], ExchangedSum)
        assert not isinstance(works[1][0], ExchangedSum)
        channels.close()
        return [small, large]

    with ThreadPoolExecutor(3) as members:
        sums = list(members.map(take_part, range(3)))
    for small, large in sums:
        assert torch.equal(small, expected)
        torch.testing.assert_close(large[:1000], expected)
