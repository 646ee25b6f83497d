"""Waiting for collectives of a backend that this machine does not have; and sums that are ours, not gloo's."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.meet.rendezvous import LOOPBACK, local_store
from ownpace.engines.process.talk.channels import _TIMEOUT_CAN_CHANGE, AskedWork, Channels, ExchangedSum, Wiring, finish
from ownpace.engines.process.talk.sealed_store import SealedStore


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


MEETINGS = 6
"""Which of two members connects to the other depends on their ports, which the system draws."""


class DiesInTheMiddle(dist.Store):
    """The store of a member that dies when it has said where it listens, in all meetings."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self._missing = {f"group/meeting{number}/0/0/1" for number in range(MEETINGS)}

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)
        self._missing.discard(key)
        if not self._missing:
            os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)


def _connect_and_die(port: int) -> None:
    store = DiesInTheMiddle(dist.TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False))
    with ThreadPoolExecutor(MEETINGS) as meetings:
        for number in range(MEETINGS):
            meetings.submit(
                Channels, f"meeting{number}", 1, 2, Wiring(SealedStore(store, "secret"), "gloo", LOOPBACK, 60), 1
            )


def _open_files_and_threads() -> tuple[int, int]:
    gc.collect()  # what failed knows itself
    files, threads = (len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task"))
    return files, threads


@pytest.mark.skipif(not _TIMEOUT_CAN_CHANGE, reason="this version of torch has one limit for all")
def test_nothing_is_left_of_attempts_to_connect_to_a_member_that_has_died():
    own, _ = local_store()
    store = SealedStore(own, "secret")
    for number in range(MEETINGS):
        store.set(f"group/meeting{number}/here/0", "")
    member = multiprocessing.get_context("spawn").Process(target=_connect_and_die, args=(own.port,))
    member.start()
    member.join(60)
    assert member.exitcode == -signal.SIGKILL
    member.close()
    before = _open_files_and_threads()

    def is_over() -> None:
        raise PeerLost("a newer generation begins")

    for number in range(MEETINGS):
        with pytest.raises(PeerLost):  # it has heard so, or has found nobody to connect to before
            Channels(f"meeting{number}", 0, 2, Wiring(store, "gloo", LOOPBACK, 0.2, is_over), 1)
    for thread in threading.enumerate():
        if thread.name == "ownpace-connect":
            thread.join(60)
    assert _open_files_and_threads() == before


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


def test_the_memory_of_a_sum_is_free_when_another_has_begun():
    own, _ = local_store()

    def take_part(member: int) -> int:
        store: Any = dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False)
        channels = Channels("workers", member, 2, Wiring(store, "gloo", LOOPBACK, 60), 1)
        begun: list[weakref.ref[Tensor]] = []
        for _ in range(4):
            values = torch.ones(1000)
            begun.append(weakref.ref(values))
            finish(channels.all_reduce(values), "workers", lambda: None)
            del values
        deadline = time.monotonic() + 30
        while any(each() is not None for each in begun[:-1]) and time.monotonic() < deadline:
            time.sleep(0.001)  # gloo's thread lets go of it a moment after it is over
        left = sum(each() is not None for each in begun[:-1])
        channels.close()
        return left

    with ThreadPoolExecutor(2) as members:
        assert list(members.map(take_part, range(2))) == [0, 0]
