"""Sync-SGD (bulk-synchronous parallel): every update waits for all workers.

    G_i = Σ of the gradients of worker i's batch at w_t,  n_i its size
    w_{t+1} = Opt(w_t, Σ_i G_i / Σ_i n_i)

All workers compute batches of the same size, so an update takes as long as the slowest of them, and then an
all-reduce. The result is that of one machine with the batch Σ n_i; staleness is zero. This is what
DistributedDataParallel does.

With `via` servers, parameters are on servers, as in the papers that compare themselves with Sync-SGD: workers push
their sums, a server waits for all of them, makes the update and answers. The result is the same but for rounding; what
differs is time, since all pushes come into the same links.

| symbol | meaning |
|---|---|
| w_t | parameters after t updates |
| G_i, n_i | worker i's sum of per-sample gradients, and its number of samples |
| Opt | one step of the optimizer with this mean gradient |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ownpace.core.blocks.accumulate import accumulate, accumulate_and_step
from ownpace.core.blocks.group_barrier import leave, step_together
from ownpace.core.blocks.push_pull import pull, push
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker


@dataclass(frozen=True, kw_only=True)
class SyncSgd(Algorithm):
    """Equal batches, a barrier, the mean over all."""

    replicas_identical: ClassVar[bool] = True
    via: Literal["ring", "servers"] = "ring"
    """How gradients come together: by an all-reduce among workers (ring), or on parameter servers."""

    @property
    def has_servers(self) -> bool:
        return self.via == "servers"

    async def worker(self, me: Worker) -> None:
        if self.has_servers:
            await self._push_and_pull(me)
            return
        while me.training:
            await accumulate_and_step(me, me.batch_size)

    async def _push_and_pull(self, me: Worker) -> None:
        size = len(me.workers)
        while me.training:
            push(me, await accumulate(me, me.batch_size), group=0, size=size)
            await pull(me)
        leave(me, group=0, size=size)

    async def server(self, me: Server) -> None:
        await step_together(me)
