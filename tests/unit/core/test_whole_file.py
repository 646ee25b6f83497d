"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from ownpace.core.whole_file import whole_file, write_text


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "f.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")  # half of a pair, which no file can hold
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["f.txt"]
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["f.txt"]


def test_new_files_have_the_mode_that_the_user_wants(tmp_path):
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "f") as part:
            part.chmod(0o600)  # as some libraries do
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "f").symlink_to("theirs")
    write_text(tmp_path / "f", "ours")
    assert (tmp_path / "theirs").read_text() == "precious"
    assert not (tmp_path / "f").is_symlink()
