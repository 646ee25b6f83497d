"""Sync-SGD with backup workers: of N workers, an update waits for the first N − b; late gradients are dropped.

    worker i:  g_i at w_t;  push g_i;  pull
    server:    gather gradients at w_t until N − b are there
               w_{t+1} = Opt(w_t, Σ G_i / Σ n_i over those);  answer their workers
               a gradient at older parameters is dropped, and its worker gets w at once

Cures rare, random delays. A machine that is always slow is always dropped: its work is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ownpace.core.blocks.accumulate import accumulate, exchange
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Address, Gradient, union
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class BackupSgd(Algorithm):
    """Synchronous, but nobody waits for the slowest few."""

    backups: int = 1
    """b: for how many of the workers an update does not wait."""

    def __post_init__(self) -> None:
        not_negative(backups=self.backups)

    async def worker(self, me: Worker) -> None:
        while me.training:
            await exchange(me, await accumulate(me, me.batch_size))
        for server in me.servers:
            me.send(server, torch.zeros(1))  # nobody needs to wait for me any more

    async def server(self, me: Server) -> None:
        left: set[Address] = set()
        pushes: dict[Address, Gradient] = {}
        while True:
            push = await me.receive()
            if not isinstance(push.body, Gradient):
                left.add(push.sender)
                if len(left) == len(me.workers):
                    left.clear()  # all of them: whoever pushes next begins anew
            elif push.gradient.versions[0] < me.parameters.version:
                me.send(push.sender, me.parameters)  # too late
            else:
                pushes[push.sender] = push.gradient
            if pushes and len(pushes) >= min(len(me.workers) - self.backups, len(me.workers) - len(left)):
                workers = sorted(pushes, key=lambda worker: worker.index)
                me.step(union([pushes[worker] for worker in workers]))
                pushes.clear()
                for worker in workers:
                    me.send(worker, me.parameters)
