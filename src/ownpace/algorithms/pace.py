"""Pace-SGD: ours. ABS-SGD, computing each batch where the optimizer is about to be.

ABS-SGD keeps every machine busy at its own pace, at the price of gradients that are one update late; with momentum,
that costs most of the stable learning rates. OD-SGD's idea repairs it, if the local step knows the optimizer:

    as ABS-SGD, but accumulate at the speculative point
      x_t^i = Opt(w_t, ĝ_i)   without committing weights or optimizer state          (SGD: w_t − η(μ v_t + ĝ_i))
      ĝ_i   = α_i · ḡ^i_in-flight + (1 − α_i) · ḡ_last-global

    `own`:   α_i = 1: the worker's own mean gradient under way, alone
    `share`: α_i = n_i / n, the worker's share of the last sum; less noise, more bias
    `none`:  x_t = w_t: ABS-SGD

Opt is any torch optimizer, through `peek`. With one worker the prediction is exact, and this is plain SGD.

| symbol | meaning |
|---|---|
| w_t, x_t^i | the parameters; where worker i computes its next gradients |
| ḡ^i_in-flight | worker i's own mean gradient, which it has contributed to the sum under way |
| ḡ_last-global | the mean gradient of the last sum that has arrived |
| n_i, n | samples of worker i and of all in that sum |
| η, μ, v_t | learning rate, momentum, momentum buffer |

| symbol | here |
|---|---|
| x_t^i | `ahead` |
| ḡ_in-flight | `batch.mean`, of the batch handed to the sum under way |
| ḡ_last-global, n_i, n | `total.mean`, `total.contributions` |
| time of a micro-batch | `micro`: by default about the same for all, so that updates are frequent |

No update has more than C = `max_batch` samples, 2 · `batch_size` · N unless given: where sums take long, updates would
grow with them, and a learning rate that was chosen for `batch_size` · N would teach little. A worker that has computed
its part c_i of them waits for the sum:

    c_i = C · v_i / Σ_j v_j,  Σ c_i = C        v_i: worker i's pace; until all are known, the parts are equal

`max_batch=0` computes without a limit, as ABS-SGD does. With T = `target_batch` every update has T samples: worker i
computes t_i of them, divided in the same way, whenever the sum under way arrives. `warmup` updates are made
synchronously at the start, while gradients still change faster than one update can predict; deep nets with momentum
need that (20 are enough for ResNet-18).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ownpace.core.blocks.micro_batch import Sizing
from ownpace.core.blocks.varying_batch import OwnPace, VaryingBatch
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class PaceSgd(VaryingBatch):
    """Compute at one's own pace, where the optimizer is about to be; apply the sum one update late."""

    replicas_identical: ClassVar[bool] = True
    predict: Literal["own", "share", "none"] = "own"
    """What the next update is expected to be: the own gradient under way (own), or it mixed with the last sum (share).
    With none, gradients are computed where the parameters are."""
    micro: Sizing = "equal-time"
    """Micro-batches of sizes that take all workers equally long (equal-time), or of one size for all (fixed)."""
    max_batch: int | None = None
    """The most samples in one update; each worker may compute its part by pace. None: twice the batch size times the
    number of workers; 0: no limit."""
    warmup: int = 0
    """Updates that are made synchronously at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(warmup=self.warmup)

    async def worker(self, me: Worker) -> None:
        own = self.at_own_pace(me)
        total = me.no_gradient()
        # By the run's updates: a generation that begins later, after a checkpoint or a failure, warms up no more.
        while me.training and me.updates < self.warmup:
            total = await own.all_reduce(await own.batch())
            own.step(total)
        if not me.training:
            return  # before another batch is begun: no sum would take it

        batch = await own.batch()
        in_flight = own.all_reduce(batch)
        while me.training:
            # Before the sum arrives: afterwards the batch in flight is part of the parameters, and no guess is needed.
            ahead = self._ahead(me, own, batch, total)
            batch = await own.batch(until=in_flight, at=ahead)
            total = await in_flight
            own.step(total)
            in_flight = own.all_reduce(batch)
        own.step(await in_flight)

    def _ahead(self, me: Worker, own: OwnPace, batch: Gradient, total: Gradient) -> Parameters | None:
        """x_t: where the optimizer will be once the sum under way has arrived. None: where it is."""
        if self.predict == "none":
            return None
        # Nothing has been summed before the first update, so there is only the own gradient to go by.
        alpha = 1.0
        # Not of several models: a mean of means over different samples would need each one's own weights.
        if self.predict == "share" and total.samples and not batch.counts:
            alpha = total.contributions[me.rank].samples / total.samples
        return own.peek(batch if alpha == 1 else mix(batch, total, alpha))


def mix(batch: Gradient, total: Gradient, alpha: float) -> Gradient:
    """ĝ: α times the mean of the batch under way and 1 − α times that of the last sum."""
    mean = total.total * ((1 - alpha) / total.samples)
    mean.add_(batch.total, alpha=alpha / max(1, batch.samples))
    return Gradient(mean, 1, batch.versions, partial=batch.partial or total.partial)
