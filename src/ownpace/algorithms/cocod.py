"""CoCoD-SGD (arXiv 1906.12043): equal numbers of local steps, and models that are averaged meanwhile.

    round t, worker i:   H steps from y_i, on batches of M_i samples           y_i ← Opt_i(y_i, g_i)
                         meanwhile x_t, the mean of where all ended round t−1, is on its way
                         y_i ← x_t + (progress of worker i in round t)

    M_i = v_i / Σ_j v_j · N b     batches in proportion to pace, so that all rounds take equally long; v_i: measured

Computing waits for the sum only where that takes longer than a round. The mean is weighted by samples. In the paper
batch sizes are set by hand, from known paces; here they are measured, and followed. Rebuilt by us from the description
of the idea and the form that the authors of Overlap-Local-SGD compared with. `stride` is this rule with as many steps
as a sum takes, instead of a fixed number.

| symbol | meaning |
|---|---|
| x_t, y_i | the mean of all models after round t; the model of worker i |
| H | local steps in a round |
| M_i, N, b | batch of worker i; number of workers; batch size |
| v_i | measured pace of worker i |

| paper | here |
|---|---|
| k, communication period | `steps` (H) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.blocks.paces import Paces, check_smoothing, divide
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class CocodSgd(Algorithm):
    """H steps alone, while the mean of where all were before is on its way."""

    replicas_identical: ClassVar[bool] = True
    steps: int = 8
    """H: local steps in a round."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, above 0 and at most 1."""

    def __post_init__(self) -> None:
        check_steps(self.steps)
        check_smoothing(self.smoothing)

    async def worker(self, me: Worker) -> None:
        paces, x, under_way = Paces(len(me.workers), self.smoothing), me.parameters.values, None
        # Asked only where all workers have awaited the same sums; the round that was begun before is summed at the end.
        while me.training:
            round_, size = LocalRound(me), self._size(me, paces)
            for _ in range(self.steps):
                round_.step(await accumulate(me, size))
            if under_way is not None:
                total = await under_way
                x = x - total.mean
                round_.go_on_from(x, total)
                paces.take(total.contributions)
            under_way = me.all_reduce(round_.difference(round_.samples))
        if under_way is not None:
            total = await under_way
            me.commit(x - total.mean, total)

    def _size(self, me: Worker, paces: Paces) -> int:
        if not paces.known:
            return me.batch_size
        return divide(me.batch_size * len(me.workers), paces.samples_per_s)[me.rank]
