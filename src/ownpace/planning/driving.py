"""Searches that ask, driven side by side: whichever has all its answers goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from ownpace.planning.pool import Pool
from ownpace.planning.trial import Trial, Tried

T = TypeVar("T")
Asks = Generator[list[Trial], list[Tried], T]
"""Yields trials, is sent what came out of them, and returns what it has found."""


@dataclass
class _Search(Generic[T]):
    asks: Asks[T]
    answers: list[Future[Tried]]

    def give_up(self) -> None:
        for future in self.answers:
            future.cancel()
        self.asks.close()


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
        go_on: Asked after each trial; once it says no, what is open has no result.
        on_found: Called with each result as it comes.
    """
    found: dict[str, T] = {}
    open_: dict[str, _Search[T]] = {}

    def advance(name: str, asks: Asks[T], answers: list[Tried] | None) -> None:
        try:
            trials = next(asks) if answers is None else asks.send(answers)
        except StopIteration as end:
            found[name] = end.value
            open_.pop(name, None)
            on_found(name, end.value)
        else:
            open_[name] = _Search(asks, [pool.submit(trial) for trial in trials])

    for name, asks in searches.items():
        advance(name, asks, None)
    seen: set[Future[Tried]] = set()
    while open_ and go_on():
        waiting = {future for search in open_.values() for future in search.answers} - seen
        if waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            seen |= done
            for _ in done:
                on_trial()
        for name, search in list(open_.items()):
            if all(future in seen for future in search.answers):
                advance(name, search.asks, [future.result() for future in search.answers])
    for search in open_.values():
        search.give_up()
    return found


def asked(trials: list[Trial]) -> Asks[list[Tried]]:
    """A search that asks once."""
    return (yield trials)


__all__ = ["Asks", "asked", "drive"]
