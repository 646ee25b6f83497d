"""Counts that all workers share: how far the queue of samples has been taken."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from ownpace.core.learning.sampling import Take
from ownpace.engines.process.talk.store import KeyValues, read_when_set

_KEY = "counter"
_COUNT = struct.Struct("<q")


class Counters:
    """Any number of counts, by number, all zero at first.

    On one host they are in a small file, which is locked for each change: 7 µs, where asking the store takes a turn
    of another process (30 µs where there is a core for it, 240 where there is none). Several hosts ask the store.
    """

    def __init__(
        self,
        store: KeyValues,
        *,
        first: bool,
        spans_hosts: bool,
        timeout_s: float = 120.0,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._file: int | None = None
        self._path = ""
        if not spans_hosts:
            if first:
                # Made before its path is published: the others open it as soon as they can read that.
                self._file, self._path = tempfile.mkstemp(prefix="ownpace-")
                store.set(_KEY, self._path)
            else:
                path = read_when_set(store, _KEY, "rank 0", timeout_s, on_wait)
                self._file = os.open(path.decode(), os.O_RDWR)

    def forget_path(self) -> None:
        """All workers have opened the file: its name can go, so that nothing is left of it when the last one ends."""
        if self._path:
            Path(self._path).unlink()
            self._path = ""

    def taking(self, number: int) -> Take:
        """Takes this many places in that count, and returns the first."""
        if self._file is None:
            return lambda places: int(self._store.add(f"count/{number}", places)) - places
        return lambda places: self._take(8 * number, places)

    def _take(self, offset: int, places: int) -> int:
        assert self._file is not None
        # Read and written under one lock: two workers must never be handed the same samples.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            known = os.pread(self._file, 8, offset)
            start = _COUNT.unpack(known)[0] if len(known) == 8 else 0
            os.pwrite(self._file, _COUNT.pack(start + places), offset)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return int(start)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self.forget_path()
            os.close(self._file)
            self._file = None
