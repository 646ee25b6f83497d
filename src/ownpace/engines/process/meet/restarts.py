"""Which nodes are started again, and when: at once at first, then later and later if they die again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_S, _LONGEST_S = 0.5, 30.0


class Restarts:
    """The nodes that are to be started again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.names: set[str] = set()
        """Those that can be: the children of this process."""
        self.start: Callable[[str], None] = _ignore
        """Starts one of them."""
        self.elsewhere: set[str] = set()
        """Those that their own host starts again, without being asked."""
        self._now = now
        self._due_s: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}
        self._started_s: dict[str, float] = {}

    def can(self, name: str) -> bool:
        """Whether a node can be started again from here."""
        return name in self.names or name in self.elsewhere

    def ask(self, name: str) -> bool:
        """Start a node again, as soon as it is due; returns whether that can be."""
        if name not in self.names:
            return name in self.elsewhere
        now = self._now()
        # A node that had lived for long is started again as if it were for the first time.
        lived_s = now - self._started_s.get(name, -_LONGEST_S)
        pause_s = 0.0 if lived_s >= _LONGEST_S else min(_LONGEST_S, 2 * self._pause_s.get(name, 0.0) or _FIRST_S)
        self._pause_s[name] = pause_s
        self._due_s[name] = now + pause_s
        return True

    def cancel(self, name: str) -> None:
        """It need not be started again: it only seemed to be gone."""
        self._due_s.pop(name, None)

    def look(self) -> None:
        """Start what is due."""
        for name in [name for name, due_s in self._due_s.items() if self._now() >= due_s]:
            del self._due_s[name]
            self._started_s[name] = self._now()
            self.start(name)


def _ignore(name: str) -> None:
    pass
