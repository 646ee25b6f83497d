"""Stride: local steps that do not wait. Progress is averaged while the next steps are already being made.

    worker i, all the time:    y_i ← Opt_i(y_i, g_i)           on its own batches, at its own pace; momentum is its own
    round ends:                P_i = progress of the round     where it began less where it ended; n_i samples
                               Σ_i n_i P_i sets off, and the next round begins at once
    the sum arrives:           Δ = Σ_i n_i P_i / Σ_i n_i
                               m ← μ m + Δ;  x ← x − ζ (Δ + μ m)        where μ = 0: m = 0, and x ← x − ζ Δ
                               z_i ← x + (1 − φ_i) (z_i − x̄)            x̄: x before, less Δ; z_i: where the round began
                               y_i ← z_i − D_i                          D_i: progress of the round so far

All that a worker does alone is handed in once, and moves x once: no progress is thrown away, lost or counted twice, and
all workers' x are equal, bit for bit. Where rounds are short, φ_i is 1, and a worker is always at the global model
plus what it alone has learnt and not yet handed in.

A sum tells where all were when they handed in: at x̄ on average, worker i at z_i. By the time that this is known, its
steps have mended a part of z_i − x̄: all of it in steep directions, and to take it back then would put the worker as far
off on the other side. So after many steps, only a part φ_i is taken back. D_i counts from wherever z_i is, so progress
is always how far steps led; and the outer step moves all workers alike.

A round ends when the sum under way has arrived and been taken in, and the worker has made at least its k_i steps. Sums
arrive everywhere at the same time, so rounds end at about the same time, whatever the paces; and they last as long as a
sum does, if that is longer than k_i steps. That is all that has to be found: the sum is hidden, and rounds are no
longer than that takes. But not at any price: a worker that has made c_i samples waits for the sum, so no round has more
than C samples of all workers. And it waits where one sum is late, after twice as many samples as usual: nobody gets far
away because one machine pauses.

Where waiting costs next to nothing, all wait: what arrives before the next step is worth more than what arrives after
it. That is tried where sums come within a step, and kept up while less than a part ω of a round is lost; what each
worker could have made meanwhile travels with the sums, so all decide alike.

    k_i = max(1, K · v_i/v_max · b/b_i)      K = `steps`; v_i: measured pace
    b_i = b · v_i/v_max                      samples of a local step: so steps take all workers equally long
          … or more, at most b               where a round has time for it: four steps or more of that size
    c_i = C · v_i / Σ_j v_j                  C = `max_batch`; whole steps, at least one
    Σ_i w_i v_i > ω Σ_i (w_i v_i + n_i)      in more than half of the last three rounds: waiting is dear; ω = `max_wait`
    μ = max(0, 1 − 4/s) · (1 − 1/√M)         s = Σ_i n_i s_i / Σ_i n_i, M = (Σ_i n_i)² / Σ_i n_i²; unless it is given
    φ_i = 1 − 0.3 · max(0, 1 − 4/d_i)        d_i: steps of the round so far; unless it is given

With φ = 1, the rule for y_i is CoCoD-SGD's (arXiv 1906.12043), there with equal numbers of steps and equal weights;
rounds that end by time, as many steps as the pace allows, weights by work, the outer step and φ are ours. With one
worker it is the optimizer itself. Where each sum arrives before another step begins, it is local SGD, with steps by
pace; the first `warmup` rounds wait for that.

| symbol | meaning |
|---|---|
| x, y_i | the global parameters; those of worker i |
| P_i, n_i | progress and samples of worker i in a round |
| Δ | mean progress of a round, weighted by samples |
| k_i, b_i | the least steps in a round, and the samples of a step, of worker i |
| D_i, d_i | progress and steps of worker i, in the round that a sum arrives in, until then |
| z_i | where that round began; or would have begun to get where worker i is |
| x̄ | where workers were on average when they handed in |
| φ_i | the part of z_i − x̄ that worker i takes back |
| s_i, s | steps that worker i made in a round; their mean, weighted by samples |
| M | the number of workers that this many samples would come from if all had made equally many |
| C, c_i | the most samples of a round that are made before its sum is waited for, of all workers and of worker i |
| v_i, v_max | measured pace of worker i, and of the fastest |
| w_i, ω | how long worker i has waited for a sum, from handing in to its arrival; the part of a round to lose so |
| b | batch size |
| m, μ, ζ | the outer step's momentum buffer, momentum and learning rate |

| symbol | here |
|---|---|
| K, C, ω | `steps`, `max_batch`, `max_wait` |
| w_i v_i | `missed` |
| b_i | `micro.size` |
| ζ, μ | `outer_lr`, `outer_momentum` (none: by the rule) |
| φ, d_i | `pull` (none: by the rule), `round_.steps` |
| Σ n_i P_i, under way | `under_way` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.outer_step import OuterStep, check_outer_step
from ownpace.core.blocks.paces import check_smoothing
from ownpace.core.blocks.round_limit import RoundLimit
from ownpace.core.blocks.waiting import MOST_WAIT, Waiting, check_max_wait
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative

_SHARE_OF_A_ROUND = 0.25
"""A step of a slow worker may take this much of a round: small batches are noisy, and a few steps are enough."""
_SHORT = 4
"""Up to this many steps, little of what a worker was off the mean is mended, and all of it is taken back."""
_LEFT = 0.3
"""What is not taken back of it after many steps."""


@dataclass(frozen=True, kw_only=True)
class StrideSgd(Algorithm):
    """Local steps at one's own pace, all the time; their progress is averaged meanwhile, and taken in as it comes."""

    replicas_identical: ClassVar[bool] = True
    steps: int = 2
    """K: the least local steps of the fastest worker in a round. A round lasts longer where the sum does."""
    max_batch: int | None = None
    """C: the most samples in a round; each worker makes its part by pace, then waits for the sum under way. None: 32
    times the batch size times the number of workers; 0: no limit."""
    max_wait: float = MOST_WAIT
    """The part of a round that waiting for its sum may cost: while it costs less, all wait; 0: never."""
    batch: Sizing = "equal-time"
    """Local steps of sizes that take all workers equally long (equal-time), or of the batch size (fixed)."""
    outer_lr: float = 1.0
    """ζ, of the outer step."""
    outer_momentum: float | None = None
    """μ, of the outer step. None: by the steps of a round; 0 up to four of them."""
    pull: float | None = None
    """φ: the part of what a worker was off the mean that it takes back. None: by its steps since; 1 up to four."""
    warmup: int = 0
    """Rounds at the start that wait for their sums, as local SGD does."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, above 0 and at most 1."""

    def __post_init__(self) -> None:
        check_steps(self.steps)
        not_negative(warmup=self.warmup, max_batch=self.max_batch)
        check_outer_step(self.outer_lr, self.outer_momentum)
        if self.pull is not None and not 0 < self.pull <= 1:
            raise InputError(f"pull is {self.pull}; it must be above 0 and at most 1, as in 0.7")
        check_max_wait(self.max_wait)
        check_smoothing(self.smoothing)

    async def worker(self, me: Worker) -> None:
        outer = OuterStep(me, self.outer_lr, self.outer_momentum)
        strides, x = Strides(me, self), me.parameters.values
        round_ = await strides.finish(LocalRound(me))
        under_way = strides.hand_in(round_)
        while me.training:
            # By the run's updates: a generation that begins later, after a checkpoint or a failure, warms up no more.
            round_ = LocalRound(me)
            if me.updates >= self.warmup:
                await strides.make_until(under_way, round_)
            total = await strides.arrival(under_way)
            before, x = x, outer.take(x, total)
            round_.go_on_from(x, total, start=self._start(round_, before, x, total))
            # Asked right after a sum, which is where all workers know the same: none is left alone in the next. Once
            # training is over, what was made meanwhile is handed in as it is.
            if me.training:
                await strides.finish(round_)
            under_way = strides.hand_in(round_)
        total = await under_way
        me.commit(outer.take(x, total), total)

    def _start(self, round_: LocalRound, before: Tensor, x: Tensor, total: Gradient) -> Tensor:
        """z_i, once a sum has moved the global parameters from `before` to `x`."""
        pull = _pull(round_.steps) if self.pull is None else self.pull
        if pull == 1:
            return x
        off = round_.start.values - (before - total.mean)
        return x + off.mul_(1 - pull)


def _pull(steps: int) -> float:
    """φ, after this many steps."""
    return 1 - _LEFT * max(0.0, 1 - _SHORT / steps) if steps else 1.0


class Strides:
    """One worker's local steps: how large they are, and how many make a round."""

    def __init__(self, me: Worker, settings: StrideSgd) -> None:
        num_workers = len(me.workers)
        self._me = me
        self._steps = settings.steps
        self._micro = MicroBatch(
            me.rank, num_workers, me.batch_size, settings.batch, settings.smoothing, _SHARE_OF_A_ROUND
        )
        self._limit = RoundLimit(settings.max_batch, settings.steps, me.batch_size, num_workers)
        self._waiting = Waiting(settings.max_wait)
        self._handed_in = self._micro.size
        self._missed = 0.0
        self._late = False

    @property
    def least(self) -> int:
        """k_i: the steps that make a round; one, until all paces are known."""
        paces, size = self._micro.paces, self._micro.size
        if paces is None:
            return 1
        share = paces[self._me.rank] / max(paces)
        part = self._limit.part(self._me.rank)
        steps = round(self._steps * share * self._me.batch_size / size)
        return max(1, steps if part is None else min(steps, part // size))

    @property
    def _most(self) -> float:
        """The samples of a round that are made before the sum under way is waited for."""
        part = self._limit.part(self._me.rank)
        return self._limit.within(math.inf if part is None else part, self.least * self._micro.size)

    async def finish(self, round_: LocalRound) -> LocalRound:
        """Make the steps that are missing to a round."""
        while round_.steps < self.least and await self._step(round_):
            pass
        return round_

    async def make_until(self, pending: Pending[object], round_: LocalRound) -> None:
        """Make steps until `pending` is done, or it is to be waited for."""
        if self._waiting.waits:
            return
        most, size = self._most, self._micro.size
        while not pending.done and round_.samples + size <= most:
            if not await self._step(round_):
                return  # no data is left: that says nothing about how long sums take
        waits = not pending.done
        self._late = waits or round_.steps > 1
        self._limit.learn(round_.samples, waited=waits)

    async def arrival(self, pending: Pending[Gradient]) -> Gradient:
        """Wait for a sum, and learn from it: all workers' paces, and what waiting costs."""
        waited_s = self._me.waited_s
        total = await pending
        self._micro.learn(total.contributions, self._handed_in)
        paces = self._micro.paces
        if paces is not None:
            self._limit.follow(paces)
            self._missed = (self._me.waited_s - waited_s) * paces[self._me.rank]
        self._waiting.learn(total)
        return total

    async def _step(self, round_: LocalRound) -> bool:
        """One step; false where no data is left."""
        gradient = await accumulate(self._me, self._micro.size)
        round_.step(gradient)
        return gradient.samples > 0

    def hand_in(self, round_: LocalRound) -> Pending[Gradient]:
        """Start the sum of a round's progress."""
        self._handed_in = self._micro.size
        part = OuterStep.noted(round_.difference(round_.samples), round_.steps)
        return self._me.all_reduce(self._waiting.noted(part, self._missed, late=self._late))
