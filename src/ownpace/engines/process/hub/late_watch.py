"""Who is late at a border: the others have ended their generation, and wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

_PATIENCE_S = 5.0
"""How long workers are waited for before that is said: half as long as one may be silent before it counts as dead."""


class LateWatch:
    """Says once at each border whom the others have been waiting for."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due_s: float | None = None

    def look(self, awaited: Sequence[str]) -> str | None:
        """What is to be said now, if anything, where these are waited for."""
        if not awaited:
            self._due_s = None
        elif self._due_s is None:
            self._due_s = self._now() + _PATIENCE_S
        elif self._now() > self._due_s:
            self._due_s = math.inf
            return (
                f"the others have been waiting for {', '.join(awaited)} for {_PATIENCE_S:g} s, at a border (a "
                "checkpoint, a worker that joins, the end); they go on when it comes, or is found to be gone"
            )
        return None
