"""One process at a time writes the files of a run: two would each undo what the other has done."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ownpace.core.contract.errors import InputError


class FolderLock:
    """A lock on a folder. It leaves nothing there, and ends with its process, however that ends."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError: another process has it."""
        self._file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(
                f"the run in {folder} has not ended: another process writes there; end that first, or choose another "
                "folder with --out"
            ) from None
        except OSError:
            pass  # a file system without locks: as good as it can be

    def release(self) -> None:
        """Let others have it."""
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):  # it has been released
            os.close(file)
