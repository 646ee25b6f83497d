"""Balanced SGD (LB-BSP): synchronous, with batches in proportion to measured speed.

    v_i = samples/s that worker i computes, measured on computing alone, smoothed
    b_i = B · v_i / Σ_j v_j, rounded so that Σ b_i = B = N · batch_size exactly
    w_{t+1} = Opt(w_t, Σ_i G_i / Σ_i b_i)            each sample counts once, whichever worker computed it

All workers take about equally long, so none waits long; staleness stays zero and the global batch is fixed, so the
result is that of Sync-SGD. Sizes follow the speeds while running: the sum of the gradients says how many samples each
worker computed and in what time, so all of them divide the next batch alike. No worker is left without work: one whose
share rounds to zero takes one sample from the largest share. A division is kept until another would make updates
faster by a twentieth (`tolerance`), since GPUs choose their kernels anew for every size; for the same reason, the time
of the first batch of a division says nothing about paces and is ignored. A share is computed in one piece, unless
`--micro-batch` limits it, and is handed to the sum before it is computed, so that its backward pass and the transfer
overlap.

| symbol | meaning |
|---|---|
| v_i | measured pace of worker i |
| b_i | its batch in the next update |
| B | the global batch, `--batch-size` times the number of workers |
| G_i | worker i's sum of per-sample gradients |

| paper | here |
|---|---|
| Σ b_i, the global batch | `me.batch_size · N` |
| predicted speed | exponential mean of measured speeds; `smoothing` is the weight of the newest |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate_and_step
from ownpace.core.blocks.division import Division
from ownpace.core.blocks.paces import check_smoothing
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class BalancedSgd(Algorithm):
    """Equal times instead of equal batches."""

    replicas_identical: ClassVar[bool] = True
    divides_batches: ClassVar[bool] = True
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's speed, above 0 and at most 1."""
    tolerance: float = 0.05
    """How much of an update's time another division must save before it is made."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)
        not_negative(tolerance=self.tolerance)

    async def worker(self, me: Worker) -> None:
        num_workers = len(me.workers)
        division = Division(num_workers * me.batch_size, num_workers, self.smoothing, self.tolerance)
        while me.training:
            made = await accumulate_and_step(me, division.sizes[me.rank])
            division.learn(made.contributions)
