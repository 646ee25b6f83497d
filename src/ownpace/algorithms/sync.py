"""Sync-SGD (bulk-synchronous parallel): every update waits for all workers.

    G_i = Σ of the gradients of worker i's batch at w_t,  n_i its size
    w_{t+1} = Opt(w_t, Σ_i G_i / Σ_i n_i)

All workers compute batches of the same size, so an update takes as long as the slowest of them, and then an
all-reduce. The result is that of one machine with the batch Σ n_i; staleness is zero. This is what
DistributedDataParallel does.

| symbol | meaning |
|---|---|
| w_t | parameters after t updates |
| G_i, n_i | worker i's sum of per-sample gradients, and its number of samples |
| Opt | one step of the optimizer with this mean gradient |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate_and_reduce
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class SyncSgd(Algorithm):
    """Equal batches, a barrier, the mean over all."""

    replicas_identical: ClassVar[bool] = True

    async def worker(self, me: Worker) -> None:
        while me.training:
            me.step(await accumulate_and_reduce(me, me.batch_size))
