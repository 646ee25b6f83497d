"""The helper of abs, acco and pace: sums know the sizes they came from, and awaiting them teaches the paces."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import torch

from ownpace.algorithms.abs_ import AbsSgd
from ownpace.core.blocks.varying_batch import _TeachingSum
from ownpace.core.contract.values import Gradient, Parameters, union


class Ready:
    """Something that is done as soon as it was started."""

    done = True

    def __init__(self, value: Gradient) -> None:
        self._value = value

    def __await__(self) -> Generator[object, None, Gradient]:
        yield from ()
        return self._value


class Sluggish:
    """Worker 1 of two, whose micro-batches take a second to begin; worker 0 computes 1000 samples per second."""

    rank = 1
    workers = (0, 1)
    batch_size = micro_batch = 64

    def __init__(self, num_updates: int) -> None:
        self.sizes: list[int] = []
        self._left = num_updates

    @property
    def training(self) -> bool:
        return self._left > 0

    def gradient(self, samples: int, *, at: Parameters | None = None, plus: Gradient | None = None) -> Ready:
        assert plus is None, "all sums are done at once"
        self.sizes.append(samples)
        return Ready(Gradient(torch.zeros(1), samples, (0,), 0.0, 1.0 + samples / 1000))

    def all_reduce(self, gradient: Gradient) -> Ready:
        return Ready(union([Gradient(torch.zeros(1), 64, (0,), 0.0, 0.064), gradient]))

    def step(self, total: Gradient, *, lr_scale: float, advance: float | None) -> None:
        self._left -= 1


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits, though all is ready")


def test_the_pace_of_a_size_is_read_off_a_sum_of_that_size() -> None:
    """A sum of the old size is still under way when the size shrinks: it says nothing of the new one."""
    me = Sluggish(num_updates=8)
    finish(AbsSgd(micro="equal-time").worker(me))  # type: ignore[arg-type]  # all that ABS-SGD asks for
    # 0.064 s are enough for 4 of 64 samples, but these take as long: the size returns with the first sum of fours.
    assert me.sizes == [64, 64, 4, 4, 64, 64, 64, 64, 64]


def test_a_sum_that_is_awaited_twice_teaches_once() -> None:
    taught: list[int] = []
    total = _TeachingSum(Ready(Gradient(torch.zeros(1), 8, (0,))), lambda contributions, size: taught.append(size), 4)

    async def wait() -> None:
        assert await total is await total

    finish(wait())
    assert taught == [4]
