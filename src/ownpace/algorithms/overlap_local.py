"""Overlap-Local-SGD (arXiv 2002.09539): an anchor with momentum, which local models are pulled back to.

    round, worker i:   τ steps alone:  x_i ← Opt_i(x_i, g_i)     meanwhile, the mean of the round before is on its way
                       v ← β v + (x̄ − z);  z ← z + v             it has come: the next anchor
                       x_i ← x_i − α (x_i − z)                   pull back
                       x̄ = mean of all x_i sets off

All workers have the same z: it is the model. Equal numbers of steps and equal weights, as in the paper: fast machines
wait for slow ones. Rebuilt by us from the paper's equations and its authors' code. The first round is not pulled back:
there is no anchor yet but where all began.

| symbol | meaning |
|---|---|
| x_i, x̄ | the model of worker i, and the mean over all |
| z, v | the anchor and its momentum buffer |
| τ, α, β | local steps in a round; how far models are pulled back; momentum of the anchor |

| paper | here |
|---|---|
| τ | `steps` |
| α | `pullback` |
| β | `anchor_momentum` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class OverlapLocalSgd(Algorithm):
    """Local steps, pulled back to an anchor that follows the mean of all models one round late."""

    replicas_identical: ClassVar[bool] = True
    steps: int = 2
    """τ: local steps in a round."""
    pullback: float = 0.6
    """α: from a model to the anchor, how far it is pulled back; 1 is all the way."""
    anchor_momentum: float = 0.7
    """β, of the anchor."""

    def __post_init__(self) -> None:
        check_steps(self.steps)
        not_negative(anchor_momentum=self.anchor_momentum)
        if not 0 < self.pullback <= 1:
            raise InputError(f"pullback is {self.pullback}; it must be above 0 and at most 1, as in 0.6")
        if self.anchor_momentum >= 1:
            raise InputError(f"anchor_momentum is {self.anchor_momentum}; it must be below 1, as in 0.7")

    async def worker(self, me: Worker) -> None:
        z, under_way = me.parameters.values, None
        # Kept: a script's next loop over the data goes on with it.
        v = me.kept.setdefault("anchor momentum", torch.zeros_like(z))
        # Asked only where all workers have awaited the same sums; the round that was begun before is summed at the end.
        while me.training:
            round_ = LocalRound(me)
            for _ in range(self.steps):
                round_.step(await accumulate(me, me.batch_size))
            if under_way is not None:
                total = await under_way
                z = self._next(z, v, total)
                held = me.parameters.values
                round_.go_on_at(held - self.pullback * (held - z), z, total)
            # Of equal weights: what arrives is z less the mean of all models.
            under_way = me.all_reduce(round_.difference(1 / len(me.workers)))
        if under_way is not None:
            total = await under_way
            me.commit(self._next(z, v, total), total)

    def _next(self, z: Tensor, v: Tensor, total: Gradient) -> Tensor:
        """The next anchor; `total` is z less the mean of all models."""
        # Where no data was left, there is no update, and momentum must not go on.
        return z + v.mul_(self.anchor_momentum).sub_(total.total) if total.samples else z
