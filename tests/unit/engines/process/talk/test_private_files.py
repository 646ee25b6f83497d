"""Files between processes of one user: nobody leads them elsewhere."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.limits import largest_file

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.talk import private_files
from ownpace.engines.process.talk.private_files import create, folder, open_existing, remove


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def make_fifo(path: Path, victim: Path) -> None:
    os.mkfifo(path, 0o600)


# What may lie where a file of ours should: how it is made, and what the refusal says of it.
IMPOSTORS = {
    "a link to a file": (lambda path, victim: path.symlink_to(victim), "symbolic links"),
    "a link to nothing": (lambda path, victim: path.symlink_to(victim.parent / "nothing"), "symbolic links"),
    "a second name": (lambda path, victim: path.hardlink_to(victim), "2 names"),
    "a pipe": (make_fifo, "mode p"),
    "a folder": (lambda path, victim: path.mkdir(), "directory"),
    "open to all": (lambda path, victim: (path.touch(), path.chmod(0o666)), "mode -rw-rw-rw-"),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_only_an_ordinary_file_of_this_user_is_opened(kind, tmp_path):
    os.close(create("first"))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    make, found = IMPOSTORS[kind]
    make(folder() / "other", victim)
    with pytest.raises(InputError, match=f"{found}.*is not a file that ownpace has made; remove it"):
        open_existing("other")
    assert victim.read_text() == "mine"
    with pytest.raises(FileExistsError):
        create("other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused():
    os.close(create("first"))
    os.chown(folder() / "first", 65534, 65534)
    with pytest.raises(InputError, match=r"owner 65534.*is not a file that ownpace has made"):
        open_existing("first")


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    folder().mkdir(mode=0o700)
    folder().chmod(0o755)
    for ask in (create, open_existing):
        with pytest.raises(InputError, match=r"mode drwxr-xr-x\) must be a folder that only user .* TMPDIR"):
            ask("first")
    folder().rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="must be a folder"):
        create("first")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/etc/passwd", "a\0", "A", "ä", "a\n", "a" * 81])
def test_a_name_is_never_a_path(name):
    for ask in (create, open_existing):
        with pytest.raises(InputError, match="is no name of a file"):
            ask(name)


def test_a_file_is_this_users_whatever_the_umask_and_nothing_is_left_of_it():
    before = os.umask(0)
    try:
        file = create("first")
    finally:
        os.umask(before)
    os.write(file, b"hello")
    other = open_existing("first")
    assert os.read(other, 10) == b"hello"
    with pytest.raises(FileNotFoundError):
        open_existing("second")
    remove("first")
    remove("first")
    assert not folder().exists()
    os.close(file)
    os.close(other)


def test_a_folder_that_is_removed_meanwhile_is_made_again(monkeypatch):
    made = []

    def removed_at_first() -> Path:
        path = Path(tempfile.gettempdir()) / f"ownpace-{os.geteuid()}"
        made.append(path)
        if len(made) == 2 and path.exists():  # between making it and entering it
            path.rmdir()
        return path

    monkeypatch.setattr(private_files, "folder", removed_at_first)
    os.close(create("first"))
    assert len(made) > 2


@pytest.fixture
def full_disk(tmp_path, monkeypatch) -> Iterator[None]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can make a small disk")
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    with suppress(OSError), (disk / "large").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    yield
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.usefixtures("full_disk")
def test_where_the_disk_is_full_a_file_is_in_memory():
    file = create("first", 1 << 16)
    try:
        os.pwrite(file, b"hello", 60_000)
        other = open_existing("first")
        assert os.pread(other, 5, 60_000) == b"hello"
        os.close(other)
    finally:
        remove("first")
        os.close(file)
    with pytest.raises(FileNotFoundError):
        open_existing("first")
    assert not (Path("/dev/shm") / folder().name).exists()


def test_where_no_file_may_be_so_large_it_begins_empty():
    with largest_file(1000):
        file = create("first", 1 << 16)
    assert os.fstat(file).st_size == 0
    os.close(file)
