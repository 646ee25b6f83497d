"""Whether all workers wait for the sum under way, instead of going on alone: where that costs next to nothing.

    missed    samples that a worker could have made while it waited for a sum: seconds · pace
    cost      Σ missed / (Σ missed + Σ samples of the round), of all workers: the part of a round that is lost
    waits     as long as no more than half of the last three costs were above `most`, a twentieth by default

How long a wait takes is known by waiting alone: who goes on alone sees no more than whether the sum was there after a
step; and a worker that is ahead of the others stays ahead. So it is tried, from the fourth sum on; and again four
hundred sums after it was found too dear. The first wait of a trial, after which all begin together, does not count.
Where the last sum took all workers longer than a step, even the last to hand in, waiting is known to be dear, and not
tried: on a slow network nobody ever waits.

What was missed travels with the sums, so all workers decide alike, by the same numbers. If each decided for itself, one
that goes on while the others wait would find them ever later, and never come back to waiting.
"""

from __future__ import annotations

from collections import deque

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative

MOST_WAIT = 0.05
"""The part of a round that may be lost. Sums that come half a round late or later cost ResNet-18 about a point, as
much as the last fifth of its run gains. But they cost MNIST's small net nothing, and which of the two a model is like
is not known here: so no more than a quarter of what there may be to gain."""
_REMEMBERED = 3
"""Costs: a single outlier does not end what was found cheap."""
_FIRST = 4
"""Sums before the first trial: paces are known by then, and sizes have settled."""
_AGAIN = 400
"""Sums between two trials. One that fails is over after three waits, of about a step at most: half a hundredth of the
time."""
_BEFORE = 2
"""Sums of a trial that tell nothing of what waiting costs: the first is of what was before, the second of the wait
after which all begin together."""


class Waiting:
    """Whether to wait, as it was learnt from the sums; the same on all workers."""

    def __init__(self, most: float = MOST_WAIT) -> None:
        """`most`: the part of a round that may be lost; 0: never wait."""
        self._most = most
        self.waits = False
        """Whether to wait for the sum under way."""
        self._costs: deque[float] = deque(maxlen=_REMEMBERED)
        self._until_trial = _FIRST
        self._sums = 0  # of this trial

    @staticmethod
    def noted(part: Gradient, missed: float, *, late: bool) -> Gradient:
        """This worker's part in the next sum, with what it tells of the last.

        Args:
            part: Of the sum.
            missed: Samples that could have been made while waiting for the last sum.
            late: Whether the last sum took this worker longer than a step.
        """
        return part.noting(**part.notes, missed=missed, late=float(late))

    def learn(self, total: Gradient) -> None:
        """Learn from a sum. All workers must do so with all sums."""
        if not self.waits:
            self._until_trial -= 1
            if self._most and self._until_trial <= 0 and total.notes["late"] < len(total.contributions):
                self.waits, self._sums = True, 0
                self._costs.clear()
            return
        self._sums += 1
        if self._sums > _BEFORE:
            missed = total.notes["missed"]
            self._costs.append(missed / max(1.0, missed + total.samples))
        if 2 * sum(cost > self._most for cost in self._costs) > len(self._costs):
            self.waits, self._until_trial = False, _AGAIN


def check_max_wait(part: float) -> None:
    """Raise if this cannot be a part of a round."""
    not_negative(max_wait=part)
    if part >= 1:
        raise InputError(
            f"max_wait is {part}; it is a part of a round, so it must be below 1, as in 0.05; 0: never wait"
        )


__all__ = ["MOST_WAIT", "Waiting", "check_max_wait"]
