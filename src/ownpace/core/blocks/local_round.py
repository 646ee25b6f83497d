"""Rounds of local steps: a worker trains alone from a common start, and then reports how far it got.

What it reports is a difference of parameters, w_start − w_i, which is to an outer update what a gradient is to a step.
It travels as one: a sum over workers, each weighted, with the samples that went into it.
"""

from __future__ import annotations

from torch import Tensor

from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient, Parameters, Sources, sum_counts, sum_sources
from ownpace.core.settings import at_most, positive

MOST_STEPS = 1_000_000


def check_steps(steps: int) -> None:
    """Raise if a round of this many local steps has no end: budgets are looked at between rounds."""
    positive(steps=steps)
    at_most(MOST_STEPS, steps=steps)


class LocalRound:
    """One worker's round."""

    def __init__(self, me: Worker) -> None:
        self._me = me
        self.start = me.parameters
        """Where this worker began; or, since a sum came in mid-round, would have begun to get where it is."""
        self.steps = 0
        """Local steps taken. A gradient of no samples is not a step."""
        self.samples = 0
        """Samples that went into them."""
        self._counts: tuple[int, ...] = ()
        self._loss: float | Tensor = 0.0
        self._seconds = 0.0
        self._dropped = 0
        self._sources: Sources = ()

    def step(self, gradient: Gradient) -> None:
        """Take one local step."""
        self._me.local_step(gradient)
        self._dropped += gradient.dropped
        # My own alone: where several workers take their steps together, each tells of itself.
        mine = tuple(source for source in gradient.sources if source[0] == self._me.rank)
        self._sources = sum_sources([self._sources, mine])
        if gradient.samples:
            self.steps += 1
            self.samples += gradient.samples
            self._counts = sum_counts([self._counts, gradient.counts])
            self._loss += gradient.loss
            self._seconds += gradient.seconds

    def go_on_from(self, values: Tensor, work: Gradient, *, start: Tensor | None = None) -> None:
        """The global parameters become `values`, in mid-round.

        I go on from where the steps taken so far would have led from there; or from `start`, if that is given. What is
        reported in the end are the steps of this round, wherever they were taken.
        """
        if not work.samples:
            return  # no update: nobody moves
        start = values if start is None else start
        self._go_on(start - (self.start.values - self._me.parameters.values), start, values, work)

    def go_on_at(self, ahead: Tensor, values: Tensor, work: Gradient) -> None:
        """The global parameters become `values`, in mid-round, and I go on at `ahead`.

        What is reported in the end is the difference from `values`.
        """
        self._go_on(ahead, values, values, work)

    def _go_on(self, ahead: Tensor, start: Tensor, values: Tensor, work: Gradient) -> None:
        me = self._me
        me.commit(values, work, ahead=ahead)
        # Before the first step, nothing of the round was computed at older parameters.
        version = self.start.version if self.steps else me.parameters.version
        self.start = Parameters(start, version, self.start.shard)

    def difference(self, weight: float) -> Gradient:
        """Weight · (w_start − w_i), with the samples that were computed for it."""
        # Start minus here, as a gradient points away from where a step goes.
        total = (self.start.values - self._me.parameters.values).mul_(weight)
        versions = (self.start.version,)
        return Gradient(
            total, self.samples, versions, self._loss, self._seconds, counts=self._counts, dropped=self._dropped,
            sources=self._sources,
        )  # fmt: skip


__all__ = ["LocalRound", "check_steps"]
