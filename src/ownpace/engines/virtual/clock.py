"""SimPy's clock, and the two kinds of things a coroutine can await on it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any, Generic, TypeVar

import simpy
from simpy.events import NORMAL

T = TypeVar("T")
Callback = Callable[[Any], None]


class Clock(simpy.Environment):
    """Virtual time. Events of equal time happen in the order in which they were scheduled."""


class Due(simpy.Event, Generic[T]):
    """Something that will be done at a known time. Awaiting it takes until then."""

    def __init__(self, clock: Clock, time: float, value: T, first: Callback) -> None:
        """Schedule it for `time`; `first` is called then, before whoever awaits it goes on."""
        # What simpy.Timeout does, but at a time and not after a delay: no rounding, and the fewest calls.
        self.env = clock
        self.callbacks = [first]
        self._value = value
        self._ok = True
        heappush(clock._queue, (time, NORMAL, next(clock._eid), self))

    @property
    def done(self) -> bool:
        return self.callbacks is None

    def __await__(self) -> Generator[Any, Any, T]:
        if self.callbacks is not None:
            yield self
        value: T = self._value
        return value


class Answer(simpy.Event, Generic[T]):
    """Something that will be done when somebody else does his part. Awaiting it is waiting, and recorded as such."""

    def __init__(self, clock: Clock, on_waited: Callable[[str, float], None], what: str) -> None:
        self.env = clock
        self.callbacks = []
        self._on_waited = on_waited
        self.what = what

    @property
    def done(self) -> bool:
        return self.callbacks is None

    def resolve(self, value: T) -> None:
        """It is done, now. Whoever awaits it goes on at once, without another turn of the clock's queue."""
        callbacks = self.callbacks
        self.callbacks = None  # type: ignore[assignment]  # SimPy's own mark of a processed event
        self._ok = True
        self._value = value
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, Any, T]:
        if self.callbacks is not None:
            start = self.env._now
            yield self
            self._on_waited(self.what, start)
        return self.accept(self._value)

    def accept(self, value: T) -> T:
        """Called each time it has been awaited."""
        return value
