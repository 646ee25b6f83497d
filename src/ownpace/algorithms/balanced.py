"""Balanced SGD (LB-BSP): synchronous, with batches in proportion to measured speed.

    v_i = samples/s that worker i computes, measured on computing alone, smoothed
    b_i = B · v_i / Σ_j v_j, rounded so that Σ b_i = B = N · batch_size exactly
    w_{t+1} = Opt(w_t, Σ_i G_i / Σ_i b_i)            each sample counts once, whoever computed it

All workers need about equally long, so nobody waits long; staleness stays zero and the global batch is fixed, so
the result is that of Sync-SGD. Sizes follow the speeds while running: every worker's speed travels with its
gradient (a few bytes, which the virtual engine does not count), so all of them divide the next batch alike. Nobody is
left without work: a worker whose share rounds to nothing takes one sample from the largest share.

| paper | here |
|---|---|
| Σ b_i, the global batch | `me.batch_size · N` |
| predicted speed | exponential mean of measured speeds; `smoothing` is the weight of the newest |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ownpace.core.algorithm import Algorithm
from ownpace.core.asking import Worker, accumulate
from ownpace.core.errors import InputError
from ownpace.core.values import Gradient


@dataclass(frozen=True, kw_only=True)
class BalancedSgd(Algorithm):
    """Equal times instead of equal batches."""

    replicas_identical: ClassVar[bool] = True
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's speed, above 0 and at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.smoothing <= 1:
            raise InputError(f"smoothing is {self.smoothing}; it must be above 0 and at most 1")

    async def worker(self, me: Worker) -> None:
        num_workers = len(me.workers)
        sizes = [me.batch_size] * num_workers
        speeds = torch.zeros(num_workers, dtype=torch.float64)
        while me.training:
            gradient = await accumulate(me, sizes[me.rank])
            total = await me.all_reduce(gradient.noting(_own_speed(me.rank, num_workers, gradient)))
            me.step(total)
            assert total.notes is not None
            known = torch.where(total.notes > 0, total.notes, speeds)
            speeds = torch.where(speeds > 0, speeds + self.smoothing * (known - speeds), known)
            sizes = divide(num_workers * me.batch_size, speeds.tolist())


def _own_speed(rank: int, num_workers: int, gradient: Gradient) -> Tensor:
    """My speed in my place and zero elsewhere: the sum over the workers holds everybody's."""
    notes = torch.zeros(num_workers, dtype=torch.float64)
    if gradient.seconds > 0:
        notes[rank] = gradient.samples / gradient.seconds
    return notes


def divide(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to `shares` that add up to `total`, each at least 1 if there is enough.

    >>> divide(10, [4, 2, 1, 1])
    [5, 3, 1, 1]
    """
    exact = [total * share / sum(shares) for share in shares]
    sizes = [int(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    for i in [i for i, size in enumerate(sizes) if size == 0]:
        largest = sizes.index(max(sizes))
        if sizes[largest] > 1:
            sizes[largest] -= 1
            sizes[i] = 1
    return sizes
