"""ABS-SGD: delayed synchronous SGD with adaptive batch size (arXiv 2308.15164).

    batch 0 at w_0 → (G_0, n_0);  S_0 = start all-reduce-sum(G_0, n_0);  w_1 = w_0
    for t = 1, 2, …:
      accumulate (G, n) in micro-batches at w_t until S_{t−1} has completed (at least one)
      w_{t+1} = Opt(w_t, Σ_i G^i_{t−1} / Σ_i n^i_{t−1});   S_t = start all-reduce-sum(G, n)
    drain the last synchronisation at the end

The paper's abstract says that gradients are synchronised with a delay of exactly one iteration, that workers
meanwhile compute a batch whose size is not fixed in advance, until the next synchronisation starts, and that
computing never idles. The rest is our reconstruction: completion is tested between micro-batches; gradients are
weighted by their samples, so the mean is that over the union of all batches; samples come from the whole data set.
Bounds on the samples of an update (`max_batch`, `target_batch`) are our addition, and off unless given: computing never
idles in the paper, however long a sum takes.

| symbol | meaning |
|---|---|
| G^i_t, n^i_t | worker i's sum of per-sample gradients in iteration t, and its number of samples |
| S_t | the sum over all workers, while it is under way |
| η, μ, a | learning rate, momentum, curvature of a quadratic |

| symbol | here |
|---|---|
| τ_i, time of a micro-batch on worker i | `micro`: samples `fixed`, or in proportion to pace (`equal-time`) |
| S_t | `in_flight` |
| n_i, n | `batch.samples`, `total.samples` |
| η under a varying n | `lr_rule`; reference: `batch_size · N` samples |

One step of delay costs stability: on curvature a, heavy ball is stable up to η·a = 2(1 + μ) without delay, but only up
to 1 − μ with it. Pace-SGD repairs that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class AbsSgd(VaryingBatch):
    """Compute at one's own pace until the last sum arrives; apply it one update late."""

    replicas_identical: ClassVar[bool] = True

    async def worker(self, me: Worker) -> None:
        own = self.at_own_pace(me)
        in_flight = own.all_reduce(await own.batch())
        while me.training:
            batch = await own.batch(until=in_flight)  # at w_t, while S_{t−1} is under way
            own.step(await in_flight)
            in_flight = own.all_reduce(batch)
        # All workers have awaited the same sums, so all leave the loop with one sum under way: no sample is lost.
        own.step(await in_flight)
