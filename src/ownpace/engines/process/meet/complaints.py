"""What went wrong, as several nodes report it: one knows the cause, the others only what it did to them."""

from __future__ import annotations

import logging
import math
import time

from ownpace.core.contract.errors import OwnpaceError

_GRACE_S = 2.0
"""How long after the first complaint a better explanation may come."""
log = logging.getLogger(__name__)


class Complaints:
    """All errors that were reported to the hub."""

    def __init__(self) -> None:
        self._errors: list[OwnpaceError] = []
        self._first_s = math.inf
        self._cause: OwnpaceError | None = None

    def add(self, error: OwnpaceError) -> None:
        """Add an error. The first that is not a consequence of another is the cause."""
        log.info("complaint about %s: %s: %s", error.blame or "an unknown node", error.code, error)
        self._errors.append(error)
        self._first_s = min(self._first_s, time.monotonic())
        if self._cause is None and not error.is_consequence:
            self._cause = error

    def forget(self) -> None:
        """Forget what only followed from the death of a node that the others go on without."""
        self._errors = [error for error in self._errors if not error.is_consequence]
        if self._cause is None:
            self._first_s = math.inf

    @property
    def verdict(self) -> OwnpaceError | None:
        """Why the run has failed, once that is clear: a cause, or a consequence that nothing has explained."""
        if self._cause is None and time.monotonic() > self._first_s + _GRACE_S:
            self._cause = self.best
        return self._cause

    @property
    def best(self) -> OwnpaceError | None:
        """The complaint that explains most, certain or not."""
        return min(self._errors, key=lambda error: error.is_consequence, default=None)
