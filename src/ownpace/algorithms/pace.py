"""Pace-SGD: ours. ABS-SGD, computing each batch where the optimizer is about to be.

ABS-SGD keeps every machine busy at its own pace, at the price of gradients that are one update late; with momentum,
that costs most of the stable learning rates. OD-SGD's idea repairs it, if the local step knows the optimizer:

    as ABS-SGD, but accumulate at the speculative point
      x_t^i = Opt(w_t, ĝ_i)   without committing weights or optimizer state          (SGD: w_t − η(μ v_t + ĝ_i))
      ĝ_i   = α_i · ḡ^i_in-flight + (1 − α_i) · ḡ_last-global

    `own`:   α_i = 1: the own mean gradient that is under way, alone
    `share`: α_i = n_i / n: as much of it as the worker had of the last sum; less noise, more bias
    `none`:  x_t = w_t: ABS-SGD

Opt is any torch optimizer, through `peek`. Alone (N = 1) the prediction is exact, and this is plain SGD.

| symbol | here |
|---|---|
| x_t^i | `ahead` |
| ḡ_in-flight | `batch.mean`, handed to the sum under way |
| ḡ_last-global, n_i, n | `total.mean`, `total.contributions` |
| time of a micro-batch | `micro`: by default about the same for all, so that updates are frequent |

`max_batch` caps the samples of one update where communication is very slow: a worker that has computed its share of
them begins no further micro-batch until the sum is there. `warmup` updates are made synchronously at the start, while
gradients still change faster than one update can predict; deep nets with momentum need that (20 are enough for
ResNet-18).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ownpace.core.blocks.accumulate import accumulate, accumulate_until
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative, positive


@dataclass(frozen=True, kw_only=True)
class PaceSgd(VaryingBatch):
    """Compute at one's own pace, where the optimizer is about to be; apply the sum one update late."""

    replicas_identical: ClassVar[bool] = True
    predict: Literal["own", "share", "none"] = "own"
    """What the next update is taken to be: my own gradient under way, or that mixed with the last sum."""
    micro: Sizing = "equal-time"
    """Micro-batches of sizes that take everybody equally long, or of the same size."""
    max_batch: int | None = None
    """At most so many samples in one update, as far as micro-batches allow."""
    warmup: int = 0
    """Updates that are made synchronously at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(max_batch=self.max_batch)
        not_negative(warmup=self.warmup)

    async def worker(self, me: Worker) -> None:
        rule, micro = self.rule_of(me), self.micro_of(me)
        total: Gradient | None = None
        for _ in range(self.warmup):
            if not me.training:
                break
            total = await me.all_reduce(rule.note(await accumulate(me, micro.next())))
            rule.step(me, total)
            micro.take(total.contributions)
        if not me.training:
            return

        batch = await accumulate(me, micro.next())
        in_flight = me.all_reduce(rule.note(batch))
        while me.training:
            guess = self._guess(me, batch, total)
            ahead = None if guess is None else me.peek(guess, lr_scale=rule.latest.lr_scale)
            del guess
            batch = await accumulate_until(me, in_flight, micro.next(), at=ahead, most=self._most(micro))
            total = await in_flight
            rule.step(me, total)
            micro.take(total.contributions)
            in_flight = me.all_reduce(rule.note(batch))
        total = await in_flight
        rule.step(me, total)

    def _guess(self, me: Worker, batch: Gradient, total: Gradient | None) -> Gradient | None:
        """ĝ: what the sum under way will turn out to be."""
        if self.predict == "none":
            return None
        if total is None or not total.samples:
            return batch if batch.samples else None
        alpha = 1.0 if self.predict == "own" else total.contributions[me.rank].samples / total.samples
        if not batch.samples:
            alpha = 0.0
        if alpha == 1:
            return batch
        mean = total.total * ((1 - alpha) / total.samples)
        if alpha:
            mean.add_(batch.total, alpha=alpha / batch.samples)
        return Gradient(mean, 1, batch.versions)

    def _most(self, micro: MicroBatch) -> float:
        """My share of the cap."""
        return math.inf if self.max_batch is None else self.max_batch * micro.share
