"""Waiting for a sum: what counts as a wait for others, and who waits, Python or the GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from ownpace.core.contract.values import NO_NOTES
from ownpace.engines.process.node.context import Orders
from ownpace.engines.process.node.reporter import Reporter, WallClock
from ownpace.engines.process.node.sums import ProcessSum
from ownpace.engines.process.talk import futex, shared_memory
from ownpace.engines.process.talk.channels import Work, finish
from ownpace.engines.process.talk.collectives import SentHeader
from ownpace.engines.process.talk.header import Numbers
from ownpace.engines.process.talk.shared_slots import Board, HostSlots, Peers
from ownpace.engines.process.talk.shared_sums import SharedSums


class Takes:
    """Something that is over after a while."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def is_completed(self) -> bool:
        return time.monotonic() >= self._end_s

    def wait(self, timeout: timedelta = timedelta(seconds=5)) -> None:
        time.sleep(min(max(0.0, self._end_s - time.monotonic()), timeout.total_seconds()))
        if not self.is_completed():
            raise RuntimeError("timed out")


class Context:
    """Of a node, what waiting needs."""

    def __init__(self, *, goes_on: bool) -> None:
        self.clock = WallClock()
        self.clock.start(time.monotonic())
        mailbox = cast(Any, SimpleNamespace(send=lambda *packet: None))
        self.reporter = Reporter("worker-0", mailbox, self.clock, detail=False)
        self.orders = Orders(goes_on=goes_on)


class Collectives:
    """Of a group, the same."""

    alone = False
    channels = SimpleNamespace(name="workers", member=0, size=2)

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield

    def read(self, numbers: Numbers, noted: object) -> object:
        return SimpleNamespace(stop=False)


def _sum(context: Context, works: list[Work], own: Work | None = None) -> ProcessSum:
    sums = SimpleNamespace(context=context, wait=lambda works, group: finish(works, group, lambda: None))
    make: Callable[..., ProcessSum] = ProcessSum  # given stand-ins
    header, values = SentHeader(torch.zeros(1), np.zeros(1)), torch.zeros(1)
    return make(sums, "all-reduce", Collectives(), works, header, values, 0.0, NO_NOTES, True, own=own)


def test_what_a_gpu_computes_for_its_own_part_is_no_wait_for_others() -> None:
    context = Context(goes_on=True)
    work = Takes(1.0)
    _sum(context, [work], own=Takes(0.9))._finish()
    assert work.is_completed()
    # Of a second, the last tenth: more where the machine is busy, but not all of it.
    assert context.reporter.waited_s < 0.8


class Later(HostSlots):
    """Tensors of a GPU that has been told to lay them down, and has not yet."""

    is_there = False

    def has_arrived(self, member: int, number: int) -> bool:
        return self.is_there


@pytest.mark.skipif(not futex.is_available(), reason="no futex here: sums go through sockets")
@pytest.mark.parametrize("goes_on", [False, True])
def test_python_waits_for_other_gpus_where_the_run_outlives_one_that_dies(goes_on: bool) -> None:
    boards = [Board(shared_memory.make_memory(Board.nbytes(4096))[1]) for _ in range(2)]
    slots = Later([board.tensors() for board in boards])
    counts = [board.on_host for board in boards]
    ours, theirs = (SharedSums("workers", m, Peers([os.getpid()] * 2), _nothing, counts, slots, 4096) for m in (0, 1))
    work = ours.all_reduce(torch.ones(4))
    theirs.all_reduce(torch.ones(4))
    made = _sum(Context(goes_on=goes_on), [work])
    made._sums.wait = _give_up  # type: ignore[method-assign,assignment]
    with pytest.raises(TimeoutError if goes_on else AssertionError):  # there, but no gradient
        made.whole()
    assert work.is_queued()
    ours.close()
    theirs.close()


def _give_up(works: list[Work], group: str) -> None:
    for work in works:
        try:
            work.wait(timedelta(seconds=0.2))
        except RuntimeError:
            raise TimeoutError from None


def _nothing() -> None:
    pass
