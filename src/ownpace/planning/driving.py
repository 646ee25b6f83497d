"""Searches that ask, driven side by side: whichever has all its answers goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ownpace.planning.pool import Pool
from ownpace.planning.trial import Trial, Tried

T = TypeVar("T")
Asks = Generator[list[Trial], list[Tried], T]
"""Yields trials, is sent what came out of them, and returns what it has found."""


POLL_S = 1.0
"""Between two questions whether to go on, while nothing ends."""


@dataclass
class _Search(Generic[T]):
    name: str
    asks: Asks[T]
    trials: list[Trial]
    answers: dict[int, Tried] = field(default_factory=dict)


def drive(
    searches: Mapping[str, Asks[T]],
    pool: Pool,
    on_trial: Callable[[], None] = lambda: None,
    go_on: Callable[[], bool] = lambda: True,
    on_found: Callable[[str, T], None] = lambda name, found: None,
) -> dict[str, T]:
    """What each search has found.

    Args:
        searches: By their names.
        pool: Where trials are carried out.
        on_trial: Called after each trial.
        go_on: Asked before each trial, and now and then while one takes long; once it says no, what is open has no
            result.
        on_found: Called with each result as it comes.
    """
    driven = _Driven(pool, on_found)
    for name, asks in searches.items():
        driven.advance(name, asks, None)
    while driven.open and go_on():
        for _ in range(driven.take_answers()):
            on_trial()
        driven.advance_all()
    for search in driven.open:
        search.asks.close()
    return driven.found


class _Driven(Generic[T]):
    """Searches on their way."""

    def __init__(self, pool: Pool, on_found: Callable[[str, T], None]) -> None:
        self.found: dict[str, T] = {}
        self.open: list[_Search[T]] = []
        self._pool = pool
        self._on_found = on_found
        self._waiting: deque[tuple[_Search[T], int]] = deque()
        self._under_way: dict[Future[Tried], tuple[_Search[T], int]] = {}

    def advance(self, name: str, asks: Asks[T], answers: list[Tried] | None) -> None:
        """Let a search go on with these answers, and note what it asks next."""
        try:
            trials = next(asks) if answers is None else asks.send(answers)
            while not trials:
                trials = asks.send([])
        except StopIteration as end:
            self.found[name] = end.value
            self._on_found(name, end.value)
        else:
            search = _Search(name, asks, trials)
            self.open.append(search)
            asked = [(search, index) for index in range(len(trials))]
            # What has begun comes first: when the time is up, some searches are done and not all of them half done.
            self._waiting = deque([*self._waiting, *asked] if answers is None else [*asked, *self._waiting])

    def take_answers(self) -> int:
        """Hand in what is to be tried, wait a little, and say how many trials have ended."""
        # No more than are carried out at once: a pool of this process alone carries each out as it is handed in, and
        # the time may be up in between.
        while self._waiting and len(self._under_way) < self._pool.num:
            search, index = self._waiting.popleft()
            self._under_way[self._pool.submit(search.trials[index])] = search, index
        done = wait(self._under_way, POLL_S, FIRST_COMPLETED).done
        for future in done:
            search, index = self._under_way.pop(future)
            search.answers[index] = future.result()
        return len(done)

    def advance_all(self) -> None:
        """Let the searches go on that have all their answers."""
        for search in [each for each in self.open if len(each.answers) == len(each.trials)]:
            self.open.remove(search)
            self.advance(search.name, search.asks, [search.answers[index] for index in range(len(search.trials))])


def asked(trials: list[Trial]) -> Asks[list[Tried]]:
    """A search that asks once."""
    return (yield trials)


__all__ = ["Asks", "asked", "drive"]
