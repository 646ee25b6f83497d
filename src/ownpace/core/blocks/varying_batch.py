"""Shared by algorithms whose updates have a varying number of samples: as many as were computed in time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Generator
from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate, accumulate_until
from ownpace.core.blocks.lr_rules import LrRule, LrRuleName
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.paces import check_smoothing
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Gradient, Parameters


@dataclass(frozen=True, kw_only=True)
class VaryingBatch(Algorithm):
    """The settings of algorithms whose workers compute at their own pace until a sum arrives."""

    lr_rule: LrRuleName = "constant"
    """How the learning rate follows the samples of an update: constant, linear, sqrt or adascale."""
    micro: Sizing = "fixed"
    """Micro-batches of one size for all workers (fixed), or of sizes that take all equally long (equal-time)."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, for equal-time."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def at_own_pace(self, me: Worker) -> OwnPace:
        """My batches, their sums and the updates made with them."""
        num_workers = len(me.workers)
        rule = LrRule(self.lr_rule, me.batch_size * num_workers)
        return OwnPace(me, rule, MicroBatch(me.rank, num_workers, me.micro_batch, self.micro, self.smoothing))


class OwnPace:
    """One worker's batches of varying size, their sums and the updates made with them.

    Hand each batch to `all_reduce` before computing another. The rest needs no order: a sum remembers the size of the
    micro-batches it came from, and awaiting it teaches the paces of all workers.
    """

    def __init__(self, me: Worker, rule: LrRule, micro: MicroBatch) -> None:
        self._me = me
        self._rule = rule
        self._micro = micro
        self._size = micro.size

    @property
    def pace_fraction(self) -> float:
        """My pace as a fraction of the sum of all workers' paces."""
        return self._micro.pace_fraction

    def batch(
        self, *, until: Pending[object] | None = None, at: Parameters | None = None, most: float = math.inf
    ) -> Awaitable[Gradient]:
        """One micro-batch; or as many as I compute `until` something is done: at least one, at most `most` samples."""
        # Noted for `all_reduce`: a sum awaited in between may change the size, but not that of this batch.
        self._size = self._micro.size
        if until is None:
            return accumulate(self._me, self._size, at=at)
        return accumulate_until(self._me, until, self._size, at=at, most=most)

    def all_reduce(self, batch: Gradient) -> Pending[Gradient]:
        """Start the sum of all workers' batches; mine is the one that was computed last."""
        return _TeachingSum(self._me.all_reduce(self._rule.note(batch)), self._micro, self._size)

    def step(self, total: Gradient) -> None:
        """Make the update with a sum, at the learning rate that its samples call for."""
        self._rule.step(self._me, total)

    def peek(self, gradient: Gradient) -> Parameters:
        """What an update with this gradient would make of the parameters, at the learning rate of the latest one."""
        return self._me.peek(gradient, lr_scale=self._rule.latest.lr_scale)


class _TeachingSum:
    """A sum under way; the first await of it teaches the workers' paces."""

    def __init__(self, pending: Pending[Gradient], micro: MicroBatch, size: int) -> None:
        self._pending = pending
        self._micro: MicroBatch | None = micro
        self._size = size

    @property
    def done(self) -> bool:
        return self._pending.done

    def __await__(self) -> Generator[object, None, Gradient]:
        total = yield from self._pending.__await__()
        if self._micro is not None:
            self._micro.learn(total.contributions, self._size)
            self._micro = None  # a second await must not count the same measurement twice
        return total


__all__ = ["OwnPace", "VaryingBatch"]
