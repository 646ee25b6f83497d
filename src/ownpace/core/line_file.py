"""A file that grows line by line, and ends with a whole line even if the disk is full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_BUFFER_BYTES = 1 << 14


class LineFile:
    """A file that lines are added to. When that fails, it ends with the last line that fitted as a whole."""

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        """Make a new file, or with `keep_bytes` go on after that many bytes of the one there is."""
        self.path = path
        # Never through a link, and never into a file that someone else has made in the meantime.
        how = os.O_CREAT | os.O_EXCL if keep_bytes is None else 0
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o666)
        self._written = 0
        self._waiting: list[bytes] = []
        self.size = 0
        """In bytes, those that wait to be written counted."""
        if keep_bytes is not None:
            self.cut(keep_bytes)

    def add(self, line: bytes) -> None:
        """Add a line, with its line break. It may be written later, together with others.

        Raises:
            OSError: Lines cannot be written; those that waited are lost, and the next may be tried.
        """
        self._waiting.append(line)
        self.size += len(line)
        if self.size - self._written > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._file is None or not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            # Half a line is not a record.
            self.cut(self._written + data.rfind(b"\n", 0, done) + 1)
            raise
        self._written = self.size

    def cut(self, size: int) -> None:
        """Keep this many bytes."""
        with contextlib.suppress(OSError):
            os.truncate(self.path if self._file is None else self._file, size)
        self._written = self.size = size

    def close(self) -> None:
        """Write what waits, and let the file go.

        Raises:
            OSError: Not all of it could be written.
        """
        try:
            self.flush()
        finally:
            if self._file is not None:
                os.close(self._file)
            self._file = None
