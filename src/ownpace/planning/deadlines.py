"""When the parts of a plan have to be over, so that it takes no longer than it may."""

from __future__ import annotations

import time
from dataclasses import dataclass

FOR_QUESTIONS = 0.2
"""The share of the time that is kept for what-ifs, if there are any."""


@dataclass(frozen=True)
class Deadlines:
    """Points of the monotonic clock, None where a plan may take as long as it does."""

    began: float
    seconds: float | None
    """That the plan may take."""
    asks: bool
    """Whether there are what-ifs."""

    @property
    def first_search(self) -> float | None:
        """Of the first search: without it nothing is known, and without the others little."""
        return self._after(0.6 * self._learning)

    @property
    def searches(self) -> float | None:
        """Of the other searches."""
        return self._after(0.85 * self._learning)

    @property
    def more_seeds(self) -> float | None:
        """Of all that is learnt on the fleet as it is."""
        return self._after(self._learning)

    @property
    def end(self) -> float | None:
        """Of the plan."""
        return self._after(1.0)

    def is_past(self, point: float | None) -> bool:
        """Whether it is later than that."""
        return point is not None and time.monotonic() >= point

    @property
    def _learning(self) -> float:
        return 1 - FOR_QUESTIONS if self.asks else 1.0

    def _after(self, share: float) -> float | None:
        return None if self.seconds is None else self.began + share * self.seconds
