"""Stale-SGD (stale synchronous parallel, SSP): asynchronous, but no worker runs too far ahead.

    worker i, clock c_i = batches it has pushed:  as in Async-SGD
    server:  w ← Opt(w, g) at once;  c_i ← c_i + 1;  answer worker i only when c_i − min_j c_j ≤ s

A worker may thus start its clock c + 1 only if c − min ≤ s. With s = 0 all workers start every clock together, as
in Sync-SGD, except that the N gradients are applied one by one and not as their mean. With s = ∞ it is Async-SGD.

| symbol | meaning |
|---|---|
| c_i | clock of worker i: batches it has pushed |
| s | by how many batches a worker may be ahead when it begins another |
| w, g | the server's parameters; a worker's mean gradient |

| paper | here |
|---|---|
| s, the staleness threshold | `staleness` |
| clock of a worker | `clocks[worker]` |
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.push_pull import compute_and_push, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Address
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class StaleSgd(Algorithm):
    """Asynchronous within a bound."""

    staleness: int = 3
    """s: how many batches a worker may be ahead of the slowest when it starts another."""
    by_layer: bool = False
    """Let layers travel on their own: gradients leave during the backward pass, and the next forward pass begins with
    the layers that have come."""

    def __post_init__(self) -> None:
        not_negative(staleness=self.staleness)

    async def worker(self, me: Worker) -> None:
        while me.training:
            await compute_and_push(me, by_layer=self.by_layer)
            await pull(me, by_layer=self.by_layer)

    async def server(self, me: Server) -> None:
        clocks = dict.fromkeys(me.workers, 0)
        waiting: list[Address] = []
        while True:
            message = await me.receive()
            me.step(message.gradient)
            clocks[message.sender] += 1  # before looking for the slowest: this push may be what others wait for
            waiting.append(message.sender)
            slowest = min(clocks.values())
            for worker in [worker for worker in waiting if clocks[worker] - slowest <= self.staleness]:
                me.send(worker, me.parameters.to_send(by_layer=self.by_layer))
                waiting.remove(worker)
