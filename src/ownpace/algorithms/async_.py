"""Async-SGD (Downpour): a server applies every gradient the moment it comes.

    worker i:  g = mean gradient of a batch at w, the parameters it last pulled;  push g;  pull
    server:    w ← Opt(w, g)    at once, with the full learning rate: neither 1/N nor a weight for staleness

Nobody waits for anybody, so all machines run at their own pace; but while a worker computes, the others' updates
move the parameters on. Its gradient is stale by as many updates.

With several servers, each owns some layers and keeps them by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate, exchange
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker


@dataclass(frozen=True, kw_only=True)
class AsyncSgd(Algorithm):
    """Every push is applied at once."""

    async def worker(self, me: Worker) -> None:
        while me.training:
            await exchange(me, await accumulate(me, me.batch_size))

    async def server(self, me: Server) -> None:
        while True:
            push = await me.receive()
            me.step(push.gradient)
            me.send(push.sender, me.parameters)
