"""Memory that two processes share: what a message points to is checked before it is opened or read."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ownpace.core.contract.errors import SharedMemoryError
from ownpace.engines.process.talk import shared_memory


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: b"", "not one of ours"),
        (lambda place: b"X" + place[1:], "not one of ours"),
        (lambda place: place[:40] + (1 << 40).to_bytes(8, "little"), "bytes are in memory of"),
        (lambda place: place[:16] + (99_999).to_bytes(8, "little") + place[24:], "cannot be opened"),
        (lambda place: place[:8] + (2**31 - 1).to_bytes(8, "little") + place[16:], "cannot be opened"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(change, message):
    outgoing, incoming = shared_memory.Outgoing(), shared_memory.Incoming()
    place = outgoing.put([memoryview(bytes(1000))])
    assert place is not None
    with pytest.raises(SharedMemoryError, match=message):
        incoming.get("liar", change(place))
    assert bytes(incoming.get("friend", place).buffer) == bytes(1000)
    outgoing.close()


def test_memory_that_could_shrink_is_refused():
    file = os.memfd_create("ownpace", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    place = shared_memory._PLACE.pack(b"OWNPLACE", os.getpid(), file, 1, 1, 100)
    with pytest.raises(SharedMemoryError, match="could still shrink"):
        shared_memory.Incoming().get("liar", place)
    os.close(file)


def test_only_memory_of_ours_is_written_to(tmp_path):
    """Whoever knows the run's key could else have a node write into any file that this user has open."""
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(200))
    foreign = os.memfd_create("foreign", os.MFD_ALLOW_SEALING)
    os.ftruncate(foreign, 4096)
    fcntl.fcntl(foreign, fcntl.F_ADD_SEALS, shared_memory._SEALS)
    with victim.open("r+b") as opened:
        for file in (opened.fileno(), foreign):
            place = shared_memory._PLACE.pack(b"OWNPLACE", os.getpid(), file, 1, 1, 100)
            with pytest.raises(SharedMemoryError, match="something that is not memory of ours"):
                shared_memory.Incoming().get("liar", place)
    os.close(foreign)


@contextmanager
def _at_most(kind: int, limit: int) -> Iterator[None]:
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


def _open_memory() -> set[int]:
    """All memory of ours that this process has open, by what the system calls it."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile: something of an earlier test may be let go at any moment
            if str(entry.readlink()).startswith("/memfd:ownpace "):
                found.add(entry.stat().st_ino)
    return found


def test_all_memory_is_there_from_the_beginning():
    """If there were none for a page that is written to later, the system would end the process, with SIGBUS."""
    file, memory = shared_memory.make_memory(1 << 20)
    assert 512 * os.fstat(file).st_blocks >= 1 << 20
    memory.close()
    os.close(file)


@pytest.mark.parametrize("limit", [(resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_FSIZE, 999)], ids=["files", "memory"])
def test_where_there_is_no_more_the_message_goes_through_a_socket(limit):
    outgoing, before = shared_memory.Outgoing(), _open_memory()
    with _at_most(*limit):
        assert outgoing.put([memoryview(bytes(1000))]) is None
    assert _open_memory() <= before  # nothing is left open
    assert outgoing.put([memoryview(bytes(1000))]) is None  # it is not tried with every message
    assert outgoing.put([memoryview(bytes(900))]) is not None
    outgoing.close()
