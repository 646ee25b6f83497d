"""Asking the store that all processes share, without being deaf meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from ownpace.core.contract.errors import MachineDied, PeerLost

T = TypeVar("T")
_FIRST_S, _LONGEST_S = 0.001, 0.02
"""How long to wait before asking again: the others are often only a moment away."""
_TICK_S = 0.2


class KeyValues(Protocol):
    """What is needed of a store; torch's have it."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read what is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are there."""

    def add(self, key: str, number: int) -> int:
        """Add to a count; returns what it is then."""

    def delete_key(self, key: str) -> bool:
        """Remove."""


class KeyValuesAndLists(KeyValues, Protocol):
    """… and lists; `talk.sealed_store` has them."""

    def append(self, key: str, value: str) -> None:
        """Add to a list."""

    def listed(self, key: str) -> bytes:
        """All that was added to it; nothing, if nothing was."""


class WatchedStore:
    """A store whose every answer is waited for in ticks: torch's own waits for ever if its host falls silent.

    Its questions go through a thread. That one may be stuck; this process is not.
    """

    def __init__(self, store: KeyValuesAndLists, on_wait: Callable[[], None]) -> None:
        self._store = store
        self._on_wait = on_wait
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a process must be able to end while it is stuck.
        threading.Thread(target=self._answer, name="ownpace-store", daemon=True).start()

    def _answer(self) -> None:
        while (question := self._questions.get()) is not None:
            question()

    def _ask(self, function: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def question() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)

        self._questions.put(question)
        while True:
            try:
                return answer.result(_TICK_S)
            except TimeoutError:
                self._on_wait()
            except RuntimeError as error:  # of torch's: the connection is lost
                self._on_wait()
                raise store_is_gone(error) from None

    def set(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        return self._ask(lambda: bytes(self._store.get(key)))

    def check(self, keys: list[str]) -> bool:
        return self._ask(lambda: self._store.check(keys))

    def add(self, key: str, number: int) -> int:
        return self._ask(lambda: int(self._store.add(key, number)))

    def append(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.append(key, value))

    def listed(self, key: str) -> bytes:
        return self._ask(lambda: self._store.listed(key))

    def delete_key(self, key: str) -> bool:
        return self._ask(lambda: self._store.delete_key(key))

    def close(self) -> None:
        """End the thread, as soon as it can."""
        self._questions.put(None)


def read_when_set(
    store: KeyValues, key: str, whose: str, timeout_s: float, on_wait: Callable[[], None] = lambda: None
) -> bytes:
    """What another process writes there; while it has not, `on_wait` may know that it never will.

    Raises:
        MachineDied: It did not come in time.
        PeerLost: The store is gone, and with it the process that keeps it.
    """
    # Not the store's own waiting: that hears neither of signals nor of a process that died.
    deadline, pause_s = time.monotonic() + timeout_s, _FIRST_S
    try:
        while not store.check([key]):
            on_wait()
            if time.monotonic() > deadline:
                raise MachineDied(f"{whose} did not come within {timeout_s:g} s; did it start?")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        return bytes(store.get(key))
    except RuntimeError as error:
        raise store_is_gone(error) from None


def store_is_gone(error: RuntimeError) -> PeerLost:
    """What it means that the store does not answer."""
    return PeerLost(f"the store of the run, which rank 0 or torchrun keeps, is gone: {str(error).splitlines()[0][:80]}")
