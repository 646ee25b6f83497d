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
    found: dict[str, T] = {}
    open_: list[_Search[T]] = []
    waiting: deque[tuple[_Search[T], int]] = deque()
    under_way: dict[Future[Tried], tuple[_Search[T], int]] = {}

    def advance(name: str, asks: Asks[T], answers: list[Tried] | None) -> None:
        try:
            trials = next(asks) if answers is None else asks.send(answers)
            while not trials:
                trials = asks.send([])
        except StopIteration as end:
            found[name] = end.value
            on_found(name, end.value)
        else:
            search = _Search(name, asks, trials)
            open_.append(search)
            waiting.extend((search, index) for index in range(len(trials)))

    for name, asks in searches.items():
        advance(name, asks, None)
    while open_ and go_on():
        # No more than are carried out at once: a pool of this process alone carries each out as it is handed in, and
        # the time may be up in between.
        while waiting and len(under_way) < pool.num:
            search, index = waiting.popleft()
            under_way[pool.submit(search.trials[index])] = search, index
        for future in wait(under_way, POLL_S, FIRST_COMPLETED).done:
            search, index = under_way.pop(future)
            search.answers[index] = future.result()
            on_trial()
            if len(search.answers) == len(search.trials):
                open_.remove(search)
                advance(search.name, search.asks, [search.answers[number] for number in range(len(search.trials))])
    for search in open_:
        search.asks.close()
    return found


def asked(trials: list[Trial]) -> Asks[list[Tried]]:
    """A search that asks once."""
    return (yield trials)


__all__ = ["Asks", "asked", "drive"]
