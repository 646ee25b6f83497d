"""Staleness-aware Async-SGD: asynchronous, the learning rate divided by the staleness of each gradient.

    worker i:  as in Async-SGD
    server:    w ← Opt(w, g) with η / τ,   τ = 1 + updates since worker i got its parameters

A fresh gradient has τ = 1 and counts fully. Slow workers, whose gradients are the stalest, count least.
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate, exchange
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker


@dataclass(frozen=True, kw_only=True)
class StalenessAwareSgd(Algorithm):
    """Every push is applied at once, with the learning rate over its staleness."""

    async def worker(self, me: Worker) -> None:
        while me.training:
            await exchange(me, await accumulate(me, me.batch_size))

    async def server(self, me: Server) -> None:
        while True:
            push = await me.receive()
            tau = 1 + me.parameters.version - push.gradient.versions[0]
            me.step(push.gradient, lr_scale=1 / tau)
            me.send(push.sender, me.parameters)
