"""Files by which processes of one user on one host meet: nobody else can read, make or replace them.

They lie in a folder that only this user can enter. What a file is called may be told by anyone, since a name is checked
to be a plain one; a path is never taken from anybody. What is opened must be an ordinary file of this user, and of
nobody else: not a link, a pipe or a device.

Where the disk of the temporary folder is full, they lie in memory, in a folder of the same kind.

A process that is killed leaves its files. Whoever makes others of that kind removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ownpace.core.contract.errors import InputError

_NAME = re.compile(r"[0-9a-z-]{1,80}", re.ASCII)
_TRIES = 10


def folder() -> Path:
    """Where this user's files lie; all processes of a run on this host must have the same temporary folder."""
    return Path(tempfile.gettempdir()) / f"ownpace-{os.geteuid()}"


def _folder_in_memory() -> Path:
    return Path("/dev/shm") / folder().name  # of no use to anybody else, so nobody is led there


def create(name: str, nbytes: int = 0) -> int:
    """Make a file that is not there yet, and open it for reading and writing.

    Args:
        name: What to call it.
        nbytes: Zeros that it is to hold at once: so much can be written to it even if the disk is full later.

    Raises:
        InputError: There is no folder that can be used.
    """
    reason: str | None = None
    # The last where a user may have no file as large as that.
    for where, size in ((folder, nbytes), (_folder_in_memory, nbytes), (folder, 0)):
        try:
            return _created(where, name, size)
        except FileExistsError:
            raise
        except OSError as error:
            reason = reason or error.strerror
    raise InputError(f"no file can be made in {folder()}: {reason}; make room there, or set TMPDIR to another folder")


def _created(where: Callable[[], Path], name: str, nbytes: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_TRIES):
        # Another process may remove the folder, empty as it is, between this process's making it and using it.
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                where().mkdir(mode=0o700)
            with _entered(where()) as inside:
                file = os.open(_checked(name), flags, 0o600, dir_fd=inside)
                try:
                    if nbytes and hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file, 0, nbytes)
                    return file
                except OSError:
                    os.close(file)
                    os.unlink(name, dir_fd=inside)
                    raise
    raise OSError(errno.ENOENT, "it is removed again and again")


def open_existing(name: str) -> int:
    """Open a file that another process of this user has made.

    Raises:
        FileNotFoundError: There is none: that process has another host, user or temporary folder.
        InputError: It is not an ordinary file of this user alone.
    """
    try:
        return _opened(folder(), name)
    except FileNotFoundError:
        return _opened(_folder_in_memory(), name)


def _opened(where: Path, name: str) -> int:
    with _entered(where) as inside:
        try:
            # NONBLOCK: opening a pipe would wait for its other end.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(_checked(name), flags, dir_fd=inside)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(where / name, str(error.strerror)) from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
        os.close(file)
        raise _refused(where / name, f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}")
    # Two names: it is a file from elsewhere. None: it was removed just now, by the process that made it.
    if found.st_nlink > 1:
        os.close(file)
        raise _refused(where / name, f"{found.st_nlink} names")
    return file


def remove(name: str) -> None:
    """Remove a file, if it is there, and the folder with the last one."""
    for where in (folder(), _folder_in_memory()):
        with contextlib.suppress(FileNotFoundError):
            with _entered(where) as inside:
                os.unlink(_checked(name), dir_fd=inside)
            with contextlib.suppress(OSError):  # others are still in it
                where.rmdir()
            return


def hold(file: int) -> bool:
    """Say that a new file is in use, until this process closes it or ends; False: it is being removed, make another."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: there, nobody finds out that a file is not held, either
    return os.fstat(file).st_nlink > 0


def remove_abandoned(kind: str, companion: str) -> None:
    """Remove the files `kind-…` that no process holds, each with the file `companion-…` of that name."""
    for where in (folder(), _folder_in_memory()):
        for name in [path.name for path in where.glob(f"{kind}-*")]:
            _remove_if_abandoned(where, name, companion + name.removeprefix(kind))


def _remove_if_abandoned(where: Path, name: str, companion: str) -> None:
    with contextlib.suppress(FileNotFoundError, InputError):  # gone by now, or not ours
        file = _opened(where, name)
        try:
            if _is_abandoned(file):
                # The one that is held goes last: it leads to the other.
                remove(companion)
                remove(name)
        finally:
            os.close(file)


def _is_abandoned(file: int) -> bool:
    """Whether nobody holds it; as long as it is open here, nobody can."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    # Without a name, it was removed just now, and another may have got the name.
    return os.fstat(file).st_nlink > 0


@contextmanager
def _entered(where: Path) -> Iterator[int]:
    """The folder, open and known to be this user's: what is done inside cannot be led elsewhere any more."""
    try:
        inside = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unsafe(where, str(error.strerror)) from None
    try:
        found = os.fstat(inside)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _unsafe(where, f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}")
        yield inside
    finally:
        os.close(inside)


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InputError(f"'{name[:80]!r}' is no name of a file between processes")
    return name


def _refused(path: Path, found: str) -> InputError:
    return InputError(f"{path} ({found}) is not a file that ownpace has made; remove it")


def _unsafe(where: Path, found: str) -> InputError:
    return InputError(
        f"{where} ({found}) must be a folder that only user {os.geteuid()} can enter; remove it, or set TMPDIR to a "
        "folder of your own"
    )
