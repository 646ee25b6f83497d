"""Files that grow line by line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.limits import largest_file

from ownpace.core.line_file import LineFile

LINE = b"x" * 99 + b"\n"


def fill(file: LineFile) -> None:
    for _ in range(1000):
        file.add(LINE)


def test_lines_wait_and_are_written_together(tmp_path):
    file = LineFile(tmp_path / "f")
    file.add(LINE)
    assert (tmp_path / "f").stat().st_size == 0
    assert file.size == 100
    file.flush()
    assert (tmp_path / "f").read_bytes() == LINE
    fill(file)
    assert (tmp_path / "f").stat().st_size > 50_000
    file.close()
    assert (tmp_path / "f").read_bytes() == 1001 * LINE == file.size // 100 * LINE


def test_neither_a_file_nor_a_link_is_taken_over(tmp_path):
    (tmp_path / "theirs").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("theirs")
    for name in ("theirs", "link"):
        with pytest.raises(FileExistsError):
            LineFile(tmp_path / name)
    with pytest.raises(OSError, match="symbolic link"):
        LineFile(tmp_path / "link", keep_bytes=0)
    assert (tmp_path / "theirs").read_bytes() == b"precious"


def test_a_file_goes_on_after_what_is_kept(tmp_path):
    (tmp_path / "f").write_bytes(b"one\ntwo\n")
    file = LineFile(tmp_path / "f", keep_bytes=4)
    file.add(b"three\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"one\nthree\n"


def test_no_room_leaves_whole_lines(tmp_path):
    file = LineFile(tmp_path / "f")
    with largest_file(20_050):
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            fill(file)
        assert (tmp_path / "f").read_bytes() == 200 * LINE
        file.cut(1000)
        file.add(b"last\n")
        file.close()
    assert (tmp_path / "f").read_bytes() == 10 * LINE + b"last\n"


def test_a_disk_without_any_room_is_an_error_of_the_line():
    file = LineFile(Path("/dev/full"), keep_bytes=0)
    file.add(LINE)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.flush()
    file.close()
