"""Pipe-SGD: synchronous, with the sum of one batch under way while the next is computed.

    g_t at w_{t−1};  w_{t+1} = Opt(w_t, g_t)          a gradient is applied one update late, always

Batches are equal and fixed. An update takes as long as the slower of computing and communicating, not their sum; the
slowest worker still sets the pace of computing. ABS-SGD does the same on machines of equal speed, if the sum takes
less time than a batch.

| symbol | meaning |
|---|---|
| w_t | parameters after t updates |
| g_t | mean gradient over all workers' samples, applied in update t + 1 |
| η, μ, a | learning rate, momentum, curvature of a quadratic |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class PipeSgd(Algorithm):
    """Equal batches; each sum is under way while the next batch is computed."""

    replicas_identical: ClassVar[bool] = True

    async def worker(self, me: Worker) -> None:
        in_flight = me.all_reduce(await accumulate(me, me.batch_size))
        while me.training:
            # Compute first, then wait: this is what the sum under way hides behind, and why it is one update late.
            gradient = await accumulate(me, me.batch_size)
            me.step(await in_flight)
            in_flight = me.all_reduce(gradient)
        me.step(await in_flight)
