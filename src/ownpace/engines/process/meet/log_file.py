"""The log file of one process. A full disk ends the log, not the process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.line_file import LineFile


class LogFile(logging.Handler):
    """Writes each record at once, so that the log of a process that is killed tells how far it was."""

    def __init__(self, folder: Path, name: str) -> None:
        """Write to `name`.log in the folder, after what an earlier process of that name wrote there.

        Raises:
            InputError: That is not possible.
        """
        super().__init__()
        path = folder / f"{name}.log"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))
            self._file: LineFile | None = LineFile(path, keep_bytes=path.stat().st_size)
        except OSError as error:
            raise InputError(f"the log file {path} cannot be written: {error}; move it, or drop --log-files") from None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        if self._file is None:
            return
        try:
            self._file.add((self.format(record) + "\n").encode(errors="backslashreplace"))
            self._file.flush()
        except OSError as error:
            path, self._file = self._file.path, None
            # Not logged: that would come here again.
            print(f"{path} ends here ({error.strerror}); the run goes on without it", file=sys.stderr)

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()
