"""DC-ASGD: asynchronous, with gradients moved to where the parameters have got to meanwhile.

    worker i:  as in Async-SGD
    server:    w ← Opt(w, g + λ g ⊙ g ⊙ (w − w_bak(i)));  w_bak(i) ← w, and that is what worker i gets

g ⊙ g stands for the diagonal of the Hessian: to first order, the bracket is the gradient at w instead of at w_bak(i),
the parameters it was computed at. With λ = 0 it is Async-SGD; alone, w = w_bak and it is plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate, exchange
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class DcAsyncSgd(Algorithm):
    """Every push is applied at once, corrected for what has changed since it was computed."""

    compensation: float = 0.04
    """λ, the strength of the correction."""

    def __post_init__(self) -> None:
        not_negative(compensation=self.compensation)

    async def worker(self, me: Worker) -> None:
        while me.training:
            await exchange(me, await accumulate(me, me.batch_size))

    async def server(self, me: Server) -> None:
        sent = dict.fromkeys(me.workers, me.parameters)
        while True:
            push = await me.receive()
            gradient, now = push.gradient, me.parameters.values
            if gradient.samples and gradient.versions[0] < me.parameters.version:
                mean = gradient.mean
                mean = mean + self.compensation * mean.square() * (now - sent[push.sender].values)
                gradient = Gradient(
                    mean * gradient.samples, gradient.samples, gradient.versions, gradient.loss, gradient.seconds
                )
            me.step(gradient)
            sent[push.sender] = me.parameters
            me.send(push.sender, me.parameters)
