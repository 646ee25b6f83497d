"""DC-ASGD: asynchronous, with gradients corrected for how far the parameters have moved in the meantime.

    worker i:  as in Async-SGD
    server:    w ← Opt(w, g + λ g ⊙ g ⊙ (w − w_bak(i)));  w_bak(i) ← w, and that is what worker i gets

g ⊙ g stands for the diagonal of the Hessian: to first order, the bracket is the gradient at w instead of at w_bak(i),
the parameters it was computed at. With λ = 0 it is Async-SGD; with one worker w = w_bak, and it is plain SGD.

| symbol | meaning |
|---|---|
| w | the server's parameters |
| w_bak(i) | what worker i got last, and computed at |
| g | its mean gradient |
| λ | strength of the correction |
| ⊙ | element-wise product; g ⊙ g stands for the diagonal of the Hessian |

| symbol | here |
|---|---|
| λ | `compensation` |
| w_bak(i) | `sent[worker]` |
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.push_pull import compute_and_push, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class DcAsyncSgd(Algorithm):
    """Every push is applied at once, corrected for what has changed since it was computed."""

    compensation: float = 0.04
    """λ, the strength of the correction."""
    by_layer: bool = False
    """Let layers travel on their own: gradients leave during the backward pass, and the next forward pass begins with
    the layers that have come."""

    def __post_init__(self) -> None:
        not_negative(compensation=self.compensation)

    async def worker(self, me: Worker) -> None:
        while me.training:
            await compute_and_push(me, by_layer=self.by_layer)
            await pull(me, by_layer=self.by_layer)

    async def server(self, me: Server) -> None:
        sent = dict.fromkeys(me.workers, me.parameters)
        while True:
            message = await me.receive()
            gradient, w = message.gradient, me.parameters
            if gradient.versions[0] < w.version:  # a fresh one needs no correction: w = w_bak
                g, w_bak = gradient.mean, sent[message.sender]
                gradient = gradient.with_mean(g + self.compensation * g.square() * (w.values - w_bak.values))
            me.step(gradient)
            # What is kept must be what is sent: the next gradient of this worker is computed there.
            sent[message.sender] = me.parameters
            me.send(message.sender, me.parameters.to_send(by_layer=self.by_layer))
