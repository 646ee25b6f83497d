"""Staleness-aware Async-SGD: asynchronous, with the learning rate divided by the staleness of each gradient.

    worker i:  as in Async-SGD
    server:    w ← Opt(w, g) with η / τ,   τ = 1 + updates since worker i got its parameters

A fresh gradient has τ = 1 and counts fully. Slow workers, whose gradients are the stalest, count least.

| symbol | meaning |
|---|---|
| w, g | the server's parameters; a worker's mean gradient |
| η | learning rate |
| τ | staleness, counted from 1 |
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.push_pull import compute_and_push, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker


@dataclass(frozen=True, kw_only=True)
class StalenessAwareSgd(Algorithm):
    """Every push is applied at once, with the learning rate over its staleness."""

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
            # Before the step, which moves the version on.
            tau = 1 + me.parameters.version - message.gradient.versions[0]
            me.step(message.gradient, lr_scale=1 / tau)
            me.send(message.sender, me.parameters.to_send(by_layer=self.by_layer))
