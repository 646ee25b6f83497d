"""Searches that ask, driven side by side: whichever has all its answers goes on."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ownpace.planning.pool import Pool
from ownpace.planning.trial import Trial, Tried

T = TypeVar("T")
Answers = Sequence[Tried | None]
Asks = Generator[list[Trial], Answers, T | None]
"""Yields trials, is sent what came out of them (None: there was no time for it), and returns what it has found, or None
if that is nothing."""


POLL_S = 1.0
"""Between two looks at the clock, while nothing ends."""
GRACE_S = 3.0
"""Trials end by themselves when the time is up; what takes longer than this after it is given up."""


@dataclass
class _Search(Generic[T]):
    name: str
    asks: Asks[T]
    trials: list[Trial]
    answers: dict[int, Tried] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        return len(self.answers) == len(self.trials)

    def all_answers(self) -> Answers:
        """Those there are, in the order of the trials."""
        return [self.answers.get(index) for index in range(len(self.trials))]


def drive(
    searches: Mapping[str, Asks[T]],
    pool: Pool,
    on_trial: Callable[[str], None] = lambda name: None,
    on_wait: Callable[[Sequence[str]], None] = lambda names: None,
    on_found: Callable[[str, T], None] = lambda name, found: None,
    deadline: float | None = None,
) -> dict[str, T]:
    """What each search has found.

    Args:
        searches: By their names.
        pool: Where trials are carried out.
        on_trial: Called after each trial, with the name of its search.
        on_wait: Called with the names of the searches under way before each trial, and now and then while one takes
            long.
        on_found: Called with each result as it comes.
        deadline: On the monotonic clock. From then on nothing is tried, and searches end with what they know; so they
            do at Ctrl-C, which is raised again.
    """
    driven = _Driven(pool, on_found, deadline)
    try:
        for name, asks in searches.items():
            driven.advance(name, asks, None)
        while driven.open and not driven.is_over:
            on_wait(driven.names)
            for name in driven.take_answers():
                on_trial(name)
            driven.advance_all()
    except KeyboardInterrupt:
        driven.conclude()
        raise
    driven.conclude()
    return driven.found


class _Driven(Generic[T]):
    """Searches on their way."""

    def __init__(self, pool: Pool, on_found: Callable[[str, T], None], deadline: float | None) -> None:
        self.found: dict[str, T] = {}
        self.open: list[_Search[T]] = []
        self._pool = pool
        self._on_found = on_found
        self._deadline = deadline
        self._waiting: deque[tuple[_Search[T], int]] = deque()
        self._under_way: dict[Future[Tried], tuple[_Search[T], int]] = {}

    @property
    def names(self) -> list[str]:
        """Of the searches that have something under way."""
        return sorted({search.name for search, _ in self._under_way.values()})

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self._left_s() <= (-GRACE_S if self._under_way else 0)

    def advance(self, name: str, asks: Asks[T], answers: Answers | None) -> None:
        """Let a search go on with these answers, and note what it asks next."""
        try:
            trials = next(asks) if answers is None else asks.send(answers)
            while not trials:
                trials = asks.send([])
        except StopIteration as end:
            if end.value is not None:
                self.found[name] = end.value
                self._on_found(name, end.value)
        else:
            search = _Search(name, asks, trials)
            self.open.append(search)
            asked = [(search, index) for index in range(len(trials))]
            # What has begun comes first: when the time is up, some searches are done and not all of them half done.
            self._waiting = deque([*self._waiting, *asked] if answers is None else [*asked, *self._waiting])

    def take_answers(self) -> list[str]:
        """Hand in what is to be tried, wait a little, and say whose trials have ended."""
        # No more than are carried out at once: a pool of this process alone carries each out as it is handed in, and
        # the time may be up in between.
        while self._waiting and len(self._under_way) < self._pool.num and self._left_s() > 0:
            search, index = self._waiting.popleft()
            self._under_way[self._pool.submit(search.trials[index], self._deadline)] = search, index
        ended = []
        for future in wait(self._under_way, POLL_S, FIRST_COMPLETED).done:
            search, index = self._under_way.pop(future)
            search.answers[index] = future.result()
            ended.append(search.name)
        return ended

    def advance_all(self) -> None:
        """Let the searches go on that have all their answers."""
        for search in [each for each in self.open if each.is_answered]:
            self.open.remove(search)
            self.advance(search.name, search.asks, search.all_answers())

    def conclude(self) -> None:
        """Let all searches end with what they know."""
        if self._under_way:
            self._pool.give_up()
        while self.open:
            search = self.open.pop(0)
            self.advance(search.name, search.asks, search.all_answers())

    def _left_s(self) -> float:
        return math.inf if self._deadline is None else self._deadline - time.monotonic()


def asked(trials: list[Trial]) -> Asks[list[Tried]]:
    """A search that asks once: those that came out."""
    return [tried for tried in (yield trials) if tried is not None] or None


__all__ = ["Answers", "Asks", "asked", "drive"]
