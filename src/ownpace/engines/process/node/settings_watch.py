"""Do the ranks of a script step with the same settings?

A scheduler that is stepped once a batch follows each rank's own count of batches, and where ranks are of unequal speed
these part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

_FAR = 0.1
"""A part of the largest that a setting has been. Local steps are made at different moments, so that small differences
come and go."""
_WHY = (
    "a scheduler that is stepped once a batch follows each rank's own count: give it to fleet.schedule(...), or set "
    "rates by fleet.steps"
)


class SettingsWatch:
    """Warns once, on a rank whose optimizer settings are not those of rank 0."""

    def __init__(self, difference: Callable[[Sequence[float], Sequence[float]], str]) -> None:
        """`difference`: says in words how a rank's settings differ from rank 0's; nothing, if they do not."""
        self._difference = difference
        self.agreed: Sequence[float] = ()
        """Those of the latest sum: rank 0's."""
        self._mine: Sequence[float] = ()
        self._largest: Sequence[float] = ()
        self._has_warned = False
        self.is_led: Callable[[], bool] = lambda: False
        """Whether the script's schedules follow the fleet, by what each rank knows of its progress."""

    def hear(self, agreed: Sequence[float], mine: Sequence[float]) -> None:
        """A sum came with those of rank 0; `mine`: this rank's own when it contributed, if they should be the same."""
        self.agreed, self._mine = agreed, mine

    def look(self) -> None:
        """All ranks step with what was agreed on."""
        if self._mine and self._mine != self.agreed and not self._has_warned:
            self._warn(self._mine, "and all step with those of rank 0")

    def look_apart(self) -> None:
        """Each rank has made local steps with its own."""
        mine, first = self._mine, self.agreed
        if not mine or self._has_warned or self.is_led():
            return
        known = self._largest or [0.0] * len(mine)
        largest = self._largest = [max(each) for each in zip(known, map(abs, mine), map(abs, first), strict=True)]
        far = [abs(a - b) > _FAR * most for a, b, most in zip(mine, first, largest, strict=True)]
        if any(far):
            shown = [a if is_far else b for a, b, is_far in zip(mine, first, far, strict=True)]
            self._warn(shown, "and each makes its local steps with its own")

    def _warn(self, mine: Sequence[float], what: str) -> None:
        found = self._difference(mine, self.agreed)
        if found:
            self._has_warned = True
            warnings.warn(f"the optimizer settings of the ranks differ: {found}, {what}; {_WHY}", stacklevel=3)
