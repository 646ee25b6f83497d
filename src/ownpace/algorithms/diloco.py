"""DiLoCo (arXiv 2311.08105), with as many local steps on each worker as its pace allows.

    round:  H_i = max(1, ⌊v_i / v_max · H⌋)               v_i: measured pace; so all rounds take equally long
            w_i ← w;  H_i times: w_i ← Opt_i(w_i, g_i)     the inner optimizer is the run's (the paper: AdamW)
            Δ = Σ_i n_i (w − w_i) / Σ_i n_i                work-weighted: n_i samples of worker i in the round
            m ← μ m + Δ;  w ← w − ζ (Δ + μ m)              the outer optimizer: Nesterov

One transfer of the parameters per round: the right choice where communication dominates. The paper has equal H and
equal weights; steps by pace and weights by work are ours. With one worker, ζ = 1 and μ = 0, it is the inner optimizer.

| symbol | meaning |
|---|---|
| w, w_i | the common parameters; those of worker i during a round |
| H, H_i | local steps of the fastest worker, and of worker i |
| v_i, v_max | measured pace of worker i, and of the fastest |
| Δ | mean difference between the start of the round and its ends |
| m, μ, ζ | the outer step's momentum buffer, momentum and learning rate |

| paper | here |
|---|---|
| H | `steps`, of the fastest worker |
| outer learning rate, momentum | `outer_lr` (ζ), `outer_momentum` (μ) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.blocks.outer_step import OuterStep, check_outer_step
from ownpace.core.blocks.paces import Paces, check_smoothing
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    """Many steps alone, as many as one's pace allows, then one outer step with the mean difference."""

    replicas_identical: ClassVar[bool] = True
    steps: int = 32
    """H: local steps of the fastest worker in a round."""
    outer_lr: float = 0.7
    """ζ, of the outer step."""
    outer_momentum: float = 0.9
    """μ, of the outer step."""
    by_pace: bool = True
    """Whether slow workers take fewer steps; otherwise every worker takes H."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, above 0 and at most 1."""

    def __post_init__(self) -> None:
        check_steps(self.steps)
        check_outer_step(self.outer_lr, self.outer_momentum)
        check_smoothing(self.smoothing)

    async def worker(self, me: Worker) -> None:
        paces = Paces(len(me.workers), self.smoothing)
        outer = OuterStep(me, self.outer_lr, self.outer_momentum)
        while me.training:
            round_ = LocalRound(me)
            for _ in range(self._steps(paces, me.rank)):
                round_.step(await accumulate(me, me.batch_size))
            total = await me.all_reduce(round_.difference(round_.samples))
            # From the common start: every worker commits the same values, wherever its own steps led.
            me.commit(outer.take(round_.start.values, total), total)
            # From the sum, which all workers see: they agree on every pace, and on the next numbers of steps.
            paces.take(total.contributions)

    def _steps(self, paces: Paces, rank: int) -> int:
        if not self.by_pace:
            return self.steps
        if not paces.known:
            return 1  # a short first round shows how fast each worker is
        # The small addend: a quotient that should be whole must not be cut off below it.
        return max(1, int(self.steps * paces.samples_per_s[rank] / max(paces.samples_per_s) + 1e-9))
