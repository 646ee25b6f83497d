"""An order that is read from something iterable: a sampler's indices, or the items of a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from torch import Generator

from ownpace.drop_in.digest import digest
from ownpace.drop_in.random_states import Generators

_CHUNK = 1024
"""How many items are skipped at a time."""


class Marks:
    """By these, ranks see whether they read the same: items 1, 2, 4, 8 …, and where epochs 1, 2, 4, 8 … end."""

    def __init__(self) -> None:
        self._items = 0
        self._found: dict[str, str] = {}

    def read(self, items: list[object]) -> None:
        """The next ones were read."""
        before, self._items = self._items, self._items + len(items)
        place = 1 << before.bit_length()
        while place <= self._items:
            self._found[f"item {place}"] = digest(items[place - before - 1])
            place *= 2

    def end_epoch(self, number: int) -> None:
        """After the item that was read last."""
        if number.bit_count() == 1:
            self._found[f"the end of epoch {number}"] = f"after item {self._items}"

    def take(self) -> dict[str, str]:
        """What was found at the marks that were passed since this was asked last."""
        found, self._found = self._found, {}
        return found


class Replayed:
    """Every rank reads all of it, epoch after epoch, and keeps what is at its own places; they only ever go up.

    It is read lazily, since it may have no end, and with random numbers of its own, so that all ranks read the same.
    """

    def __init__(
        self,
        begin: Callable[[int], Iterator[object]],
        epochs: int | None,
        seed_of: Callable[[int], int],
        own: Generator | None = None,
    ) -> None:
        """An order.

        Args:
            begin: Begins an epoch.
            epochs: How many there are (None: without end).
            seed_of: The seed for the random numbers of an epoch.
            own: A generator that it draws from, besides the global ones.
        """
        self._begin = begin
        self._epochs = epochs
        self._seed_of = seed_of
        self._own = own
        self._epoch = -1
        self._iterator: Iterator[object] | None = None
        self._generators = Generators(0)
        self._ahead: deque[object] = deque()
        self._place = 0
        """Of the next item: the first of those that were read ahead."""
        self._has_ended = False
        self._error: Exception | None = None
        self.marks = Marks()

    def first(self, count: int) -> list[object]:
        """The first items, or all there are; they are kept for whoever takes their places.

        An error is kept, too, and raised when a place is taken: until then, other ranks may wait for this one.
        """
        assert self._place == 0
        try:
            if len(self._ahead) < count and self._error is None:
                self._ahead.extend(self._read(count - len(self._ahead)))
        except Exception as error:
            self._error = error
        return list(islice(self._ahead, count))

    def at(self, start: int, count: int) -> list[object]:
        assert start >= self._place, "places go up"
        if self._error is not None:
            raise self._error
        while self._place < start and self._next(min(start - self._place, _CHUNK)):
            pass
        return self._next(count) if self._place == start else []

    def _next(self, count: int) -> list[object]:
        items = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
        items += self._read(count - len(items))
        self._place += len(items)
        return items

    def _read(self, count: int) -> list[object]:
        items: list[object] = []
        has_begun = False
        while len(items) < count and not self._has_ended:
            if self._iterator is None:
                if self._epoch + 1 == self._epochs:
                    self._has_ended = True
                    break
                self._epoch += 1
                self._generators = Generators(self._seed_of(self._epoch), self._own)
                with self._generators.in_use():
                    self._iterator = self._begin(self._epoch)
                has_begun = True
            wanted = count - len(items)
            with self._generators.in_use():
                found = list(islice(self._iterator, wanted))
            self.marks.read(found)
            if len(found) < wanted:
                self._iterator = None
                self.marks.end_epoch(self._epoch + 1)
                # An epoch without any item: the next ones would have none either, and this would never end.
                self._has_ended = has_begun and not found
            items += found
            has_begun = False
        return items
