"""Memory that two processes share: what a message points to is checked before it is opened or read."""

from __future__ import annotations

import fcntl
import os

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
