"""Shared by algorithms whose updates have a varying number of samples: as many as were computed in time.

    v_i, m_i           worker i's pace, as measured on the sums that all have seen, and the size of its micro-batches
    C, c_i             `max_batch`; c_i = C · v_i / Σ_j v_j in whole numbers that add up to C, each at least 1
    batch of worker i  micro-batches of min(m_i, c_i − n) samples, n being those computed so far:
                       one, and more until the sum under way has arrived, or less than m_i / 2 would be left of c_i
    T, t_i             `target_batch`, divided in the same way; a batch is t_i samples, whenever the sum arrives

So no update has more than C samples, and with T every update has T, on any fleet and any network. Until all paces are
known, the parts are equal; later they are kept until one is off by a tenth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

from ownpace.core.blocks.accumulate import accumulate, accumulate_until
from ownpace.core.blocks.lr_rules import LrRule, LrRuleName
from ownpace.core.blocks.micro_batch import MicroBatch, Sizing
from ownpace.core.blocks.paces import check_smoothing
from ownpace.core.blocks.quota import Quota
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Contribution, Gradient, Parameters
from ownpace.core.settings import at_most, not_negative, positive

MOST_SAMPLES = 10**9
"""Of one update."""


@dataclass(frozen=True, kw_only=True)
class VaryingBatch(Algorithm):
    """The settings of algorithms whose workers compute at their own pace until a sum arrives."""

    lr_rule: LrRuleName = "constant"
    """How the learning rate follows the samples of an update: constant, linear, sqrt or adascale."""
    micro: Sizing = "fixed"
    """Micro-batches of one size for all workers (fixed), or of sizes that take all equally long (equal-time)."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, for equal-time and for parts of a batch."""
    max_batch: int | None = 0
    """The most samples in one update; each worker may compute its part by pace. 0: no limit; none: twice the batch size
    times the number of workers."""
    target_batch: int | None = None
    """The samples of every update: each worker computes its part by pace, whenever sums arrive. None: as many as were
    computed in time."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)
        not_negative(max_batch=self.max_batch)
        positive(target_batch=self.target_batch)
        at_most(MOST_SAMPLES, target_batch=self.target_batch, max_batch=self.max_batch)
        if self.target_batch and self.max_batch and self.target_batch > self.max_batch:
            raise InputError(
                f"target_batch is {self.target_batch}, more than the max_batch of {self.max_batch}; give one of them"
            )

    def most_samples(self, batch_size: int, num_workers: int) -> int | None:
        """The most samples that one update may have; None: there is no limit."""
        if self.target_batch is not None:
            return self.target_batch
        if self.max_batch is None:
            return 2 * batch_size * num_workers
        return self.max_batch or None

    def at_own_pace(self, me: Worker, *, sums: int = 1) -> OwnPace:
        """My batches, their sums and the updates made with them, each of which takes this many sums."""
        num_workers = len(me.workers)
        rule = LrRule(self.lr_rule, me.batch_size * num_workers)
        micro = MicroBatch(me.rank, num_workers, me.micro_batch, self.micro, self.smoothing)
        most = self.most_samples(me.batch_size, num_workers)
        name = "max_batch" if self.target_batch is None else "target_batch"
        quota = None if most is None else Quota(name, most, num_workers, sums)
        return OwnPace(me, rule, micro, quota, exact=self.target_batch is not None)


class OwnPace:
    """One worker's batches of varying size, their sums and the updates made with them.

    Hand each batch to `all_reduce` before computing another. The rest needs no order: a sum remembers the size of the
    micro-batches it came from, and awaiting it teaches the paces of all workers.
    """

    def __init__(self, me: Worker, rule: LrRule, micro: MicroBatch, quota: Quota | None, *, exact: bool) -> None:
        self._me = me
        self._rule = rule
        self._micro = micro
        self._quota = quota
        self._exact = exact
        self._size = micro.size

    def batch(self, *, until: Pending[object] | None = None, at: Parameters | None = None) -> Awaitable[Gradient]:
        """One micro-batch; or as many as I compute `until` something is done: at least one, at most my part of the cap.

        Where the samples of an update are prescribed, exactly my part of them.
        """
        # Noted for `all_reduce`: a sum awaited in between may change the size, but not that of this batch.
        self._size = self._micro.size
        most = None if self._quota is None else self._quota.next(self._me.rank)
        if most is not None and self._exact:  # in the largest pieces: nothing that arrives in between would end it
            return accumulate(self._me, most, at=at)
        if until is None:
            return accumulate(self._me, self._size if most is None else min(self._size, most), at=at)
        return accumulate_until(self._me, until, self._size, at=at, most=most)

    def all_reduce(self, batch: Gradient) -> Pending[Gradient]:
        """Start the sum of all workers' batches; mine is the one that was computed last."""
        return _TeachingSum(self._me.all_reduce(self._rule.note(batch)), self._learn, self._size)

    def step(self, total: Gradient) -> None:
        """Make the update with a sum, at the learning rate that its samples call for."""
        self._rule.step(self._me, total)

    def peek(self, gradient: Gradient) -> Parameters:
        """What an update with this gradient would make of the parameters, at the learning rate of the latest one."""
        return self._me.peek(gradient, lr_scale=self._rule.latest.lr_scale)

    def _learn(self, contributions: Sequence[Contribution], size: int) -> None:
        self._micro.learn(contributions, size)
        if self._quota is not None and self._micro.paces is not None:
            self._quota.follow(self._micro.paces)


class _TeachingSum:
    """A sum under way; the first await of it teaches the workers' paces."""

    def __init__(
        self, pending: Pending[Gradient], learn: Callable[[Sequence[Contribution], int], None], size: int
    ) -> None:
        self._pending = pending
        self._learn: Callable[[Sequence[Contribution], int], None] | None = learn
        self._size = size

    @property
    def done(self) -> bool:
        return self._pending.done

    def __await__(self) -> Generator[object, None, Gradient]:
        total = yield from self._pending.__await__()
        if self._learn is not None:
            self._learn(total.contributions, self._size)
            self._learn = None  # a second await must not count the same measurement twice
        return total


__all__ = ["OwnPace", "VaryingBatch"]
