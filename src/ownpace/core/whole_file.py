"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to. What was written there then takes the place of `path` in one act.

    If that fails, or the machine does, `path` is what it was before. The file can be read by whom the user lets read
    new files, whatever mode its writer gave it.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    mode = os.fstat(file).st_mode & 0o777  # what umask left
    os.close(file)
    try:
        yield part
        part.chmod(mode)
        # Before it gets its name: after a power cut, that must lead to the old contents or the new, and to all of them.
        _flush(part)
        part.replace(path)
        _flush(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that is there whole, or not at all."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
