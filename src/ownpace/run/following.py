"""A run's records as they are written, by whomever and wherever: only its folder is looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ownpace.core.contract.event_file import EVENTS, checked_event, is_detail, segments
from ownpace.core.contract.events import Detail, Event

_LATEST_BYTES = 1 << 20
"""Of what was there before: older detail is passed over, since only the latest is shown."""
_PIECE_BYTES = 1 << 22


class GrowingFile:
    """The whole lines of a file, each once, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self._half = b""
        self._identity: tuple[int, int] | None = None

    def was_replaced(self) -> bool:
        """Whether it is another file by now, or was cut: then it is to be read from the beginning."""
        with suppress(OSError):
            now = self.path.stat()
            known = self._identity
            return known is not None and (known != (now.st_dev, now.st_ino) or now.st_size < self._at)
        return False

    def lines(self) -> Iterator[tuple[bytes, int]]:
        """Those that are new, and how many bytes follow each: nothing, while there is no such file."""
        with suppress(OSError), self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._identity = (status.st_dev, status.st_ino)
            file.seek(self._at)
            while piece := file.read(_PIECE_BYTES):
                self._at += len(piece)
                *whole, self._half = (self._half + piece).split(b"\n")
                for line in whole:
                    yield line, status.st_size - self._at


class Following:
    """The events of a run, as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = GrowingFile(folder / EVENTS)
        self._latest: GrowingFile | None = None

    def new_events(self) -> Iterator[Event]:
        """Those written since the last call; of what was there before the first, the latest detail alone."""
        for line, rest in self._first.lines():
            yield from _decoded(line, rest)
        # Of a long run, detail goes into files of their own, of which the last is the latest part.
        with suppress(OSError):
            path = next(reversed(segments(self._folder).values()), None)
            if path is not None and (self._latest is None or self._latest.path != path):
                self._latest = GrowingFile(path)
        if self._latest is not None:
            for line, rest in self._latest.lines():
                # What is not detail stands in the first file, too.
                yield from (event for event in _decoded(line, rest) if isinstance(event, Detail))

    def began_anew(self) -> bool:
        """Whether the run was replaced, or goes on from a checkpoint: what was read before no longer counts."""
        if not self._first.was_replaced():
            return False
        self._first, self._latest = GrowingFile(self._folder / EVENTS), None
        return True


def _decoded(line: bytes, rest: int) -> Iterator[Event]:
    if rest > _LATEST_BYTES and is_detail(line):
        return
    with suppress(ValueError):  # a damaged line is nothing to stop for
        yield checked_event(line)
