"""What is drawn over samples, from a run's events as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ownpace.core.contract.events import Evaluation, Event, Update

MOST_UPDATES = 2000
"""After this many, every second is left out, then three of four …: tools for scalars are slow with millions."""


@dataclass(frozen=True)
class Scalar:
    """One point of a curve."""

    name: str
    value: float
    samples: int
    t: float
    """In seconds of the engine's clock."""


class Scalars:
    """Turns events into scalars: all evaluations, and of updates as many as a curve needs."""

    def __init__(self) -> None:
        self._updates = 0
        self._every = 1

    def of(self, event: Event) -> Iterator[Scalar]:
        """Those of one event."""
        if isinstance(event, Evaluation):
            for name, value in (("test/accuracy", event.accuracy), ("test/loss", event.loss)):
                if value is not None:
                    yield Scalar(name, value, event.samples, event.t)
            if event.t > 0:
                yield Scalar("speed/samples_per_s", event.samples / event.t, event.samples, event.t)
        elif isinstance(event, Update):
            self._updates += 1
            if self._updates > 2 * MOST_UPDATES * self._every:
                self._every *= 2
            if self._updates % self._every == 0:
                for name, number in (("update/staleness", event.staleness), ("update/samples", event.samples)):
                    yield Scalar(name, float(number), event.total_samples, event.t)
