"""Sync-SGD with backup workers: of N workers, an update waits for the first N − b; late gradients are dropped.

    worker i:  g_i at w_t;  push g_i;  pull
    server:    gather gradients at w_t until N − b have arrived
               w_{t+1} = Opt(w_t, Σ G_i / Σ n_i over those);  answer their workers
               a gradient at older parameters is dropped, and its worker gets w at once

This helps against rare, random delays. A machine that is always slow is always dropped: its work is lost.

| symbol | meaning |
|---|---|
| N, b | number of workers; how many of them an update does not wait for |
| g_i, G_i, n_i | worker i's gradient, as a sum G_i over n_i samples |
| w_t | parameters after t updates |

| symbol | here |
|---|---|
| b | `backups` |
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.push_pull import pull, push
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Address, Gradient, Sources, sum_sources, union
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class BackupSgd(Algorithm):
    """Synchronous, but an update does not wait for the slowest few."""

    backups: int = 1
    """b: for how many of the workers an update does not wait; at most N − 1."""

    def __post_init__(self) -> None:
        not_negative(backups=self.backups)

    def check(self, num_workers: int, sampling: str | None) -> None:
        # One alone waits for nobody, and may leave the default.
        most = max(1, num_workers - 1)
        if self.backups > most:
            raise InputError(
                f"backups is {self.backups}, but there are {num_workers} workers, and an update must wait for one of "
                f"them; use at most {most}"
            )

    async def worker(self, me: Worker) -> None:
        while me.training:
            push(me, await accumulate(me, me.batch_size))
            await pull(me)
        for server in me.servers:
            me.send(server, leaves=1)  # servers need not wait for me any more

    async def server(self, me: Server) -> None:
        left: set[Address] = set()
        pushes: dict[Address, Gradient] = {}
        thrown_away: Sources = ()
        while True:
            message = await me.receive()
            if "leaves" in message.notes:
                left.add(message.sender)
            elif message.gradient.versions[0] < me.parameters.version:
                me.send(message.sender, me.parameters)  # too late
                thrown_away = sum_sources([thrown_away, message.gradient.sources])
            else:
                pushes[message.sender] = message.gradient
            present = len(me.workers) - len(left)
            if pushes and len(pushes) >= min(len(me.workers) - self.backups, present):
                # By rank, not by arrival: floating-point sums depend on the order, and runs must be reproducible.
                workers = sorted(pushes, key=lambda worker: worker.index)
                total = union([pushes[worker] for worker in workers])
                # Told with the next update: these samples are used up, though nothing was learnt from them.
                total.sources = sum_sources([total.sources, thrown_away])
                thrown_away = ()
                me.step(total)
                pushes.clear()
                for worker in workers:
                    me.send(worker, me.parameters)
