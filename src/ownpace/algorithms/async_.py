"""Async-SGD (Downpour): a server applies every gradient the moment it arrives.

    worker i:  g = mean gradient of a batch at w, the parameters it last pulled;  push g;  pull
    server:    w ← Opt(w, g)    at once, with the full learning rate: neither 1/N nor a weight for staleness

No worker waits for another, so all machines run at their own pace; but while a worker computes, the others' updates
move the parameters on. Its gradient is stale by as many updates.

With several servers, each owns some of the layers and follows the same rule.

| symbol | meaning |
|---|---|
| w | the server's parameters |
| g | a worker's mean gradient |
| N | number of workers |
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.push_pull import compute_and_push, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker


@dataclass(frozen=True, kw_only=True)
class AsyncSgd(Algorithm):
    """Every push is applied at once."""

    by_layer: bool = False
    """Let layers travel on their own: gradients leave during the backward pass, and the next forward pass begins with
    the layers that have come."""

    async def worker(self, me: Worker) -> None:
        while me.training:
            await compute_and_push(me, by_layer=self.by_layer)
            await pull(me, by_layer=self.by_layer)

    async def server(self, me: Server) -> None:
        while True:
            message = await me.receive()
            me.step(message.gradient)
            # After the step: a worker gets parameters that know its own gradient.
            me.send(message.sender, me.parameters.to_send(by_layer=self.by_layer))
