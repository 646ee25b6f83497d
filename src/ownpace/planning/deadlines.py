"""When the parts of a plan have to be over, so that it takes no longer than it may."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from ownpace.fleet import Fleet
from ownpace.planning.candidates import MANY_WORKERS

FOR_QUESTIONS = 0.2
"""The share of the time that is kept for what-ifs, if there are any."""
USUAL_S = 60.0
"""What a plan takes on an idle machine, about, where nothing else is said."""
LIMIT_S, LIMIT_OF_MANY_S = 120.0, 300.0
"""What it takes at most then; and with a large fleet, whose updates take seconds to simulate."""

_LEAST_S = 1e-3


@dataclass(frozen=True)
class Deadlines:
    """Points of the monotonic clock, None where a plan may take as long as it does."""

    began: float
    seconds: float | None
    """That the plan may take."""
    asks: bool
    """Whether there are what-ifs."""

    @classmethod
    def of(cls, began: float, seconds: float | None, fleet: Fleet, *, asks: bool, timing_only: bool) -> Deadlines:
        """Of a plan, with what was said of its length."""
        if seconds is None and not timing_only:
            seconds = LIMIT_OF_MANY_S if len(fleet.workers) > MANY_WORKERS else LIMIT_S
        return cls(began, seconds, asks)

    def from_now(self) -> Deadlines:
        """The same for what is left of the time."""
        now = time.monotonic()
        return replace(self, began=now, seconds=None if self.end is None else max(0.0, self.end - now))

    @property
    def first_search(self) -> float | None:
        """Of the first search: without it nothing is known, and without the others little."""
        return self._after(0.5 * self._learning)

    @property
    def searches(self) -> float | None:
        """Of the other searches."""
        return self._after(0.85 * self._learning)

    @property
    def left_to_search_s(self) -> float:
        """Seconds from now until all searches have to be over."""
        return math.inf if self.searches is None else max(_LEAST_S, self.searches - time.monotonic())

    @property
    def more_seeds(self) -> float | None:
        """Of all that is learnt on the fleet as it is."""
        return self._after(self._learning)

    @property
    def end(self) -> float | None:
        """Of the plan."""
        return self._after(1.0)

    @property
    def _learning(self) -> float:
        return 1 - FOR_QUESTIONS if self.asks else 1.0

    def _after(self, share: float) -> float | None:
        return None if self.seconds is None else self.began + share * self.seconds
