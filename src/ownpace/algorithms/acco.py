"""ACCO (arXiv 2406.02613): two sums per committed step; gradients are never applied to parameters they do not know.

    A_t at w̃_t, the estimate of w_t, while the sum of B_{t−1} is under way
    B_t at w_t,                      while the sum of A_t is under way
    w̃_{t+1} = Opt(w_t, A_t)          as soon as A_t is summed; not committed, the state is restored
    w_{t+1} = Opt(w_t, A_t + B_t)    as soon as B_t is summed

Half of every step's samples are taken at the parameters themselves, half at an estimate of them. Computing never
waits for a sum, as long as a micro-batch takes longer; on machines of different pace, each adds micro-batches until
the sum under way arrives, as in ABS-SGD. It costs two collectives per committed step. On a quadratic of curvature a
it is stable up to η·a = 2 (μ = 0). Rebuilt by us from the description of the idea; Pace-SGD's nearest rival.
Micro-batches that take all workers equally long (`micro=equal-time`) and bounds on the samples of an update
(`max_batch`, `target_batch`; half of them for each of the two sums) are our additions, and off unless given.

| symbol | meaning |
|---|---|
| w_t, w̃_t | the parameters after t updates, and the estimate of them |
| A_t, B_t | mean gradients over all workers' samples, at the estimate and at the parameters |
| A_t + B_t | the union of both: the mean over the samples of both |
| η, a | learning rate, curvature of a quadratic |

| symbol | here |
|---|---|
| sum of A_t | `first`; awaited: `half` |
| sum of B_t | `second` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import union


@dataclass(frozen=True, kw_only=True)
class Acco(VaryingBatch):
    """Speculate with one half of the gradients, commit with both."""

    replicas_identical: ClassVar[bool] = True
    # An update has two sums' samples, and on machines of different pace each sum has twice those of `sync`. At the rate
    # of `sync` a run is over before it has learnt; and up to η·a = 2, where `sync` ends, too, it is stable.
    times_usual_lr: ClassVar[float] = 4.0

    async def worker(self, me: Worker) -> None:
        own = self.at_own_pace(me, sums=2)
        first = own.all_reduce(await own.batch())
        while me.training:
            batch = await own.batch(until=first)
            half = await first
            second = own.all_reduce(batch)  # before peeking: the sum is under way while the optimizer works
            batch = await own.batch(until=second, at=own.peek(half))
            own.step(union([half, await second]))
            first = own.all_reduce(batch)
        own.step(await first)
