"""Whoever listens to a run while it goes on. A listener that fails is said once and left out: it never ends the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ownpace.core.contract.events import Event
from ownpace.report.exports.loggers import ScalarLogger
from ownpace.report.exports.scalars import Scalars

OnEvent = Callable[[Event], None]
_logger = logging.getLogger(__name__)


class Listeners:
    """Hands every event to all listeners, each as long as it does not fail."""

    def __init__(self, listeners: Sequence[OnEvent]) -> None:
        self._listeners = list(listeners)

    def __call__(self, event: Event) -> None:
        """Hand on one event."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # Whatever it is: hours of training are worth more than a curve in another tool.
            except Exception as error:
                self._listeners.remove(listener)
                _say(listener, error)


class ScalarHook:
    """A listener that sends a run's scalars to a logger, for as long as a block lasts."""

    def __init__(self, logger: ScalarLogger) -> None:
        self._target = logger
        self._scalars = Scalars()

    def __call__(self, event: Event) -> None:
        """Send what an event has to show."""
        for scalar in self._scalars.of(event):
            self._target.log(scalar)

    def __enter__(self) -> ScalarHook:
        return self

    def __exit__(self, *details: object) -> None:
        try:
            self._target.close()
        except Exception as error:  # as above: the run is over, and its result must not be lost to this
            _say(self, error)


def _say(listener: object, error: Exception) -> None:
    name = getattr(listener, "__qualname__", type(listener).__name__)
    _logger.warning(
        "%s failed (%s: %s) and hears no more of this run, which goes on", name, type(error).__name__, str(error)[:300]
    )
