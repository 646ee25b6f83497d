"""ACCO (arXiv 2406.02613): two sums per committed step; gradients are never applied to parameters they do not know.

    A_t at w̃_t, the estimate of w_t, while the sum of B_{t−1} is under way
    B_t at w_t,                      while the sum of A_t is under way
    w̃_{t+1} = Opt(w_t, A_t)          as soon as A_t is summed; not committed, the state is restored
    w_{t+1} = Opt(w_t, A_t + B_t)    as soon as B_t is summed

Half of every step's samples are taken at the parameters themselves, half at an estimate of them. Computing never
waits for a sum, as long as a micro-batch takes longer; at machines of different pace, each adds micro-batches until
the sum under way is there, as in ABS-SGD. It costs two collectives per committed step. On a quadratic of curvature a
it is stable up to η·a = 2 (μ = 0). Rebuilt by us from the description of the idea; our nearest rival.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from ownpace.core.algorithm import Algorithm
from ownpace.core.asking import Worker, accumulate, accumulate_until
from ownpace.core.batches import LrRule, MicroBatch, Rule, Sizing, check_smoothing
from ownpace.core.values import union


@dataclass(frozen=True, kw_only=True)
class Acco(Algorithm):
    """Speculate with one half of the gradients, commit with both."""

    replicas_identical: ClassVar[bool] = True
    lr_rule: Rule = "constant"
    """How the learning rate follows the samples of an update: constant, linear, sqrt or adascale."""
    micro: Sizing = "fixed"
    """Micro-batches of the same size, or of sizes that take everybody equally long (which is ours)."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    async def worker(self, me: Worker) -> None:
        rule = LrRule(self.lr_rule, me.batch_size * len(me.workers))
        micro = MicroBatch(me.rank, len(me.workers), me.micro_batch, self.micro, self.smoothing)
        first = me.all_reduce(rule.note(await accumulate(me, micro.next())))
        while me.training:
            batch = await accumulate_until(me, first, micro.next())
            estimate = await first
            micro.take(estimate.shares)
            second = me.all_reduce(rule.note(batch))
            ahead = me.peek(estimate, lr_scale=rule.latest.lr_scale) if estimate.samples else None
            batch = await accumulate_until(me, second, micro.next(), at=ahead)
            addition = await second
            micro.take(addition.shares)
            total = union([estimate, addition])
            me.step(total, **asdict(rule.scaling(total)))
            first = me.all_reduce(rule.note(batch))
        total = await first
        me.step(total, **asdict(rule.scaling(total)))
