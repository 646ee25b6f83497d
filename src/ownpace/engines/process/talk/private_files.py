"""Files by which processes of one user on one host meet: nobody else can read, make or replace them.

They lie in a folder that only this user can enter. What a file is called may be told by anyone, since a name is checked
to be a plain one; a path is never taken from anybody. What is opened must be an ordinary file of this user, and of
nobody else: not a link, a pipe or a device.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ownpace.core.contract.errors import InputError

_NAME = re.compile(r"[0-9a-z-]{1,80}", re.ASCII)
_TRIES = 10


def folder() -> Path:
    """Where this user's files lie; all processes of a run on this host must have the same temporary folder."""
    return Path(tempfile.gettempdir()) / f"ownpace-{os.geteuid()}"


def create(name: str) -> int:
    """Make a file that is not there yet, and open it for reading and writing.

    Raises:
        InputError: The folder cannot be used.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_TRIES):
        # Another process may remove the folder, empty as it is, between this process's making it and using it.
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                folder().mkdir(mode=0o700)
            with _entered() as inside:
                return os.open(_checked(name), flags, 0o600, dir_fd=inside)
    raise InputError(f"no file can be made in {folder()}: it is removed again and again; set TMPDIR to another folder")


def open_existing(name: str) -> int:
    """Open a file that another process of this user has made.

    Raises:
        FileNotFoundError: There is none: that process has another host, user or temporary folder.
        InputError: It is not an ordinary file of this user alone.
    """
    with _entered() as inside:
        try:
            # NONBLOCK: opening a pipe would wait for its other end.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(_checked(name), flags, dir_fd=inside)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(name, str(error.strerror)) from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
        os.close(file)
        raise _refused(name, f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}")
    # Two names: it is a file from elsewhere. None: it was removed just now, by the process that made it.
    if found.st_nlink > 1:
        os.close(file)
        raise _refused(name, f"{found.st_nlink} names")
    return file


def remove(name: str) -> None:
    """Remove a file, if it is there, and the folder with the last one."""
    with contextlib.suppress(FileNotFoundError):
        with _entered() as inside:
            os.unlink(_checked(name), dir_fd=inside)
        with contextlib.suppress(OSError):  # others are still in it
            folder().rmdir()


@contextmanager
def _entered() -> Iterator[int]:
    """The folder, open and known to be this user's: what is done inside cannot be led elsewhere any more."""
    try:
        inside = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unsafe(str(error.strerror)) from None
    try:
        found = os.fstat(inside)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _unsafe(f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}")
        yield inside
    finally:
        os.close(inside)


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InputError(f"'{name[:80]!r}' is no name of a file between processes")
    return name


def _refused(name: str, found: str) -> InputError:
    return InputError(f"{folder() / name} ({found}) is not a file that ownpace has made; remove it")


def _unsafe(found: str) -> InputError:
    return InputError(
        f"{folder()} ({found}) must be a folder that only user {os.geteuid()} can enter; remove it, or set TMPDIR to a "
        "folder of your own"
    )
