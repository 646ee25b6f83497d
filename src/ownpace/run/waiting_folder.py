"""Where the files of a run lie that is about to replace another: in a folder inside that one's, until it has begun.

A process that is killed cannot remove it. Whoever starts a run there next does, if no process has it any more: its
owner holds a lock on it, which ends with the process however that ends. Only files that bear the names of a run's own
are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ownpace.run.config import CONFIG
from ownpace.run.folder_lock import FolderLock
from ownpace.run.place import is_run, own_files, remove_unfinished

_PREFIX = ".new-"


class WaitingFolder:
    """The one of this process."""

    def __init__(self, run: Path) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=run))
        # Where locks cannot be had, nobody gets one later: a folder that is left there stays.
        self._lock = FolderLock(self.path)

    def move_to(self, run: Path) -> None:
        """The run has begun: its files take their places, the one that marks them last."""
        for file in own_files(self.path):
            file.replace(run / file.name)
        self.path.rmdir()
        self.release()

    def release(self) -> None:
        """This process has no use for it any more."""
        self._lock.release()


def is_waiting(run: Path) -> bool:
    """Whether a run that is to replace the one in this folder has not begun."""
    return any(run.glob(f"{_PREFIX}*"))


def settle_abandoned(run: Path) -> None:
    """Deal with what a process left that was killed before its run had begun, or while its files took their places.

    In the second case what marks the earlier run is gone, and what marks the new one has still to come: without it, the
    files that are there would seem to be someone else's.
    """
    with contextlib.suppress(OSError):  # a folder that cannot be read or written: what is left there stays
        _settle(run)


def _settle(run: Path) -> None:
    for folder in _abandoned(run):
        if not (run / CONFIG).exists() and _is_marked(folder):
            for file in own_files(folder):
                if not (run / file.name).exists():  # what somebody has put there since stays
                    file.replace(run / file.name)
        for file in own_files(folder):
            file.unlink(missing_ok=True)
        remove_unfinished(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless something else is in it, which is not ours


def _is_marked(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and is_run(folder / CONFIG)


def _abandoned(run: Path) -> Iterator[Path]:
    """Those that no process has; each is locked while it is dealt with."""
    for folder in sorted(run.glob(f"{_PREFIX}*")) if run.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
            finally:
                os.close(lock)
