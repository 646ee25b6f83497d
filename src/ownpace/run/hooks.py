"""Whoever listens to a run while it goes on. A listener that fails is said once and left out: it never ends the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ownpace.core.contract.events import Event
from ownpace.report.exports.loggers import ScalarLogger, TensorBoardLogger, WandbLogger
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


def tensorboard(folder: str | Path) -> ScalarHook:
    """A listener that writes scalars into a folder that TensorBoard shows.

    Raises:
        InputError: TensorBoard is not installed.
    """
    return ScalarHook(TensorBoardLogger(Path(folder), time.time()))


def wandb(project: str, name: str | None = None, settings: Mapping[str, object] | None = None) -> ScalarHook:
    """A listener that sends scalars to Weights & Biases.

    Raises:
        InputError: W&B is not installed, or cannot begin a run.
    """
    return ScalarHook(WandbLogger(project, name, settings or {}))


def _say(listener: object, error: Exception) -> None:
    name = getattr(listener, "__qualname__", type(listener).__name__)
    _logger.warning(
        "%s failed (%s: %s) and hears no more of this run, which goes on", name, type(error).__name__, str(error)[:300]
    )
