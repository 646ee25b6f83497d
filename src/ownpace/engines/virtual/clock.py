"""The virtual clock: SimPy's, with a shortcut for what happens millions of times in a run.

`Clock` is a SimPy environment. Whatever SimPy offers (timeouts, processes, interrupts) runs on it next to our
coroutines, in one order of time. But SimPy's events are general, and three things in a run are so frequent that their
generality would dominate its cost: a computation ends, a message arrives, a coroutine goes on. These use the lean
objects below, which are in SimPy's own queue and cost about half as much as its events. docs/design.md has the
measurements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL

T = TypeVar("T")


class Clock(simpy.Environment):
    """Virtual time. What is due at the same time happens in the order in which it was scheduled."""

    def __init__(self) -> None:
        self.time = 0.0
        """Now. A plain attribute, because nodes read it several times for every gradient."""
        super().__init__()
        self.going_on = True
        # Sorted without sorting: `at_last` appends what is due last, and hands everything else to the heap.
        self._lane: deque[tuple[float, int, int, Due]] = deque()
        self._lane_end = 0.0

    @property
    def _now(self) -> float:  # where SimPy keeps its time
        return self.time

    @_now.setter
    def _now(self, time: float) -> None:
        self.time = time

    def go_on(self) -> None:
        """Let things happen, one after the other, until one of them sets `going_on` to False.

        Raises:
            EmptySchedule: None did, but nothing is left to happen.
        """
        # Entries compare by time, priority and number. Queue and lane share one row of numbers, so what is due at the
        # same time happens in the order of scheduling, whichever of the two it stands in.
        queue: list[tuple[float, int, int, Any]] = self._queue  # type: ignore[assignment]  # ours stand in it too
        lane = self._lane
        while self.going_on:
            if lane and (not queue or lane[0] < queue[0]):
                self.time, _, _, event = lane.popleft()
            elif queue and isinstance(queue[0][3], Due):
                # Taken from SimPy's queue by hand: its step() expects a list of callbacks, which ours do not have.
                self.time, _, _, event = heappop(queue)
            else:
                self.step()  # an event of SimPy's own, or none at all
                continue
            # Done before it happens, as what it starts may ask; and all that before its coroutine goes on.
            event.done = True  # type: ignore[misc]  # a slot of every subclass
            event.happen()
            if event.driver is not None:
                event.driver.go_on()

    def drop(self, keep: Callable[[object], bool]) -> None:
        """Let only what `keep` accepts still happen."""
        kept = [entry for entry in self._queue if keep(entry[3])] + [e for e in self._lane if keep(e[3])]
        self._queue[:] = kept  # type: ignore[assignment]
        heapify(self._queue)
        self._lane.clear()
        self._lane_end = 0.0

    def postpone(self, these: Callable[[object], bool], until: float) -> None:
        """Let what `these` accepts happen at that time at the earliest, in the same order."""
        late = [e for e in (*self._queue, *self._lane) if e[0] < until and these(e[3])]
        if late:
            self.drop(lambda event: not any(event is entry[3] for entry in late))
            for _, _, _, event in sorted(late):
                self.at(until, event)  # type: ignore[arg-type]  # ours alone are asked for

    def last(self, of: Callable[[object], bool]) -> float | None:
        """When the last of those happens that `of` accepts."""
        return max((entry[0] for entry in (*self._queue, *self._lane) if of(entry[3])), default=None)

    def scheduled(self) -> list[object]:
        """All that is still to happen, in no order."""
        return [entry[3] for entry in self._queue] + [entry[3] for entry in self._lane]

    def at(self, time: float, event: Due) -> None:
        """Let something happen at that time."""
        heappush(self._queue, (time, NORMAL, next(self._eid), event))  # type: ignore[misc]

    def at_last(self, time: float, event: Due) -> None:
        """The same, for what probably happens later than anything else scheduled by this method.

        Messages that take equally long arrive in the order of sending: they need no sorting.
        """
        # Equal times are in order, too: entries are numbered as they come, so the later one sorts last.
        if time >= self._lane_end:
            self._lane_end = time
            self._lane.append((time, NORMAL, next(self._eid), event))
        else:
            self.at(time, event)

    def peek(self) -> float:
        """The time of the next event, or infinity."""
        return min(super().peek(), self._lane[0][0] if self._lane else float("inf"))

    def start(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> Driver:
        """Start a coroutine, at the current time and in the order of starting."""
        driver = Driver(coroutine, on_end)
        # Scheduled, not run at once: no coroutine may act before all others have been started.
        self.at(self.time, Call(driver.go_on))
        return driver


class Driver:
    """A coroutine that is being run."""

    __slots__ = ("_coroutine", "_on_end")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_end = on_end

    def go_on(self) -> None:
        """Let the coroutine run until it awaits something that is not done yet."""
        try:
            pending: Due | Answer[Any] = self._coroutine.send(None)
        except StopIteration:
            self._on_end()
        else:
            # One driver is enough: a node runs one coroutine, and what it awaits belongs to that node.
            pending.driver = self

    def close(self) -> None:
        """End the coroutine where it is suspended."""
        self._coroutine.close()


class Due:
    """Something that will happen at a known time. A subclass says what, and what awaiting it returns."""

    __slots__: tuple[str, ...] = ()  # each subclass lists those below: some have another base with slots
    done: bool
    """Whether it has happened."""
    driver: Driver | None
    """The coroutine that awaits it."""

    def happen(self) -> None:
        """Called at that time, before the coroutine that awaits it goes on."""


class Call(Due):
    """A function to be called at a known time."""

    __slots__ = ("_function", "done", "driver")

    def __init__(self, function: Callable[[], None]) -> None:
        self.done = False
        self.driver = None
        self._function = function

    def happen(self) -> None:
        self._function()


class Planned(Call):
    """A call that belongs to the run and not to one of its generations: a fault, the end of its time."""

    __slots__ = ()


class Answer(Generic[T]):
    """Something that is done once another node has done its part. Awaiting it is waiting."""

    __slots__ = ("done", "driver", "value")

    def __init__(self) -> None:
        self.done = False
        self.driver: Driver | None = None
        self.value: T

    def resolve(self, value: T) -> None:
        """It is done. The coroutine that awaits it goes on at once, without another turn of the clock."""
        self.done = True
        self.value = value
        if self.driver is not None:
            self.driver.go_on()


__all__ = ["Answer", "Call", "Clock", "Driver", "Due", "EmptySchedule", "Planned"]
