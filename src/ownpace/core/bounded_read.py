"""Reading what users name, without waiting for ever or running out of memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The contents of a plain file that is not too large.

    Raises:
        OSError: It cannot be read, is no plain file (a pipe would be waited for), or is too large.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a plain file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(f"{path} is larger than {most_bytes:,} bytes")
    return content


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe waits until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)
