"""Local SGD: every worker trains alone for H steps, then the models are averaged.

    round:  w_i ← w;  H times: w_i ← Opt_i(w_i, g_i)      on worker i's own batches
            w ← Σ_i n_i w_i / Σ_i n_i                     n_i: samples of worker i in the round

One transfer per H steps, so communication hardly matters; but a round takes as long as the slowest worker's H steps,
and models that have drifted apart do not average well if H is large. Optimizer state stays with each worker.

| symbol | meaning |
|---|---|
| w, w_i | the common parameters; those of worker i during a round |
| g_i | mean gradient of a batch of worker i, at w_i |
| H | local steps in a round |
| n_i | samples of worker i in the round |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class LocalSgd(Algorithm):
    """H steps alone, then the mean of all models."""

    replicas_identical: ClassVar[bool] = True
    steps: int = 8
    """H: local steps between two averages."""

    def __post_init__(self) -> None:
        check_steps(self.steps)

    async def worker(self, me: Worker) -> None:
        while me.training:
            round_ = LocalRound(me)
            for _ in range(self.steps):
                round_.step(await accumulate(me, me.batch_size))
            total = await me.all_reduce(round_.difference(round_.samples))
            # From the common start, not from here: all workers commit the same values.
            me.commit(round_.start.values - total.mean, total)
