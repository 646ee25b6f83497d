"""Large tensors between processes of one host go through memory that both have, not through a socket.

The message itself still goes over ZeroMQ, encrypted and in its order; instead of the tensor's bytes it says where they
are. Such memory has no name in any file system, so nothing is left of it when its processes are gone. The receiver
opens it through the sender's entry in /proc, which only the same user on the same host can do. Both sides publish
an identity (user and host), and a sender uses this way only for a receiver with the same one. Any other message, and
one that is sent before the last was taken, goes over the socket whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ownpace.core.contract.errors import SharedMemoryError

log = logging.getLogger(__name__)
SMALLEST = 1 << 18
"""Bytes; less goes over the socket."""
# A cache line: the receiver writes its count here while the sender writes what follows.
_HEAD = 64
"""Bytes in front of the tensor: how many messages the receiver has taken."""
_TAKEN = struct.Struct("<q")
_PLACE = struct.Struct("<8sqqqqq")
_MAGIC = b"OWNPLACE"
_SEALS = 0x1 | 0x2 | 0x4  # sealing itself, shrinking and growing are forbidden from now on
_generations = itertools.count(1)


def identity() -> str:
    """This process's user and host; two of the same can open each other's memory. Empty: no other process can."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        # Also that of the network: where two have links of their own, what they send is meant to go over these.
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net", "user")]  # noqa: PTH115  # no paths of files
        return hashlib.sha256(f"{boot}{spaces}{os.getuid()}".encode()).hexdigest()[:16]
    return ""


def new_memory() -> int:
    """A file that is memory, empty and not sealed."""
    return os.memfd_create("ownpace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(file: int) -> None:
    """Keep its size for good: a receiver that reads from memory which shrinks would be killed by SIGBUS."""
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)


def make_memory(nbytes: int) -> tuple[int, mmap.mmap]:
    """Memory that other processes can open: the number of its file, and the memory itself, full of zeros.

    Raises:
        OSError: There is not so much, or the process may not have it, or has too many files open.
    """
    file = new_memory()
    try:
        # All of it now: where there is none left for a page when it is first written to, that ends the process.
        os.posix_fallocate(file, 0, nbytes)
        seal(file)
        return file, mmap.mmap(file, nbytes)
    except BaseException:
        os.close(file)
        raise


def open_memory(owner: str, pid: int, file: int) -> mmap.mmap:
    """Memory that another process made.

    Raises:
        SharedMemoryError: It cannot be opened, or is not what it should be.
    """
    with file_of_memory(owner, pid, file) as opened:
        return mmap.mmap(opened, 0)


@contextlib.contextmanager
def file_of_memory(owner: str, pid: int, file: int) -> Iterator[int]:
    """The file of memory that another process made, open for a moment.

    Raises:
        SharedMemoryError: It cannot be opened or mapped, or is not what it should be.
    """
    try:
        entry = f"/proc/{pid}/fd/{file}"
        # Before it is opened: nobody says which file of this user is written to.
        if not os.readlink(entry).startswith("/memfd:ownpace "):  # noqa: PTH115  # it is no path of a file
            raise SharedMemoryError(f"{owner} shares something that is not memory of ours")
        opened = os.open(entry, os.O_RDWR | os.O_CLOEXEC)
        try:
            if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise SharedMemoryError(f"{owner} shares memory that it could still shrink")
            yield opened
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        raise SharedMemoryError(f"the memory that {owner} shares cannot be opened: {error}") from None


class Outgoing:
    """The memory through which one node writes to one other."""

    def __init__(self) -> None:
        self._file = -1
        self._map: mmap.mmap | None = None
        self._generation = 0
        self._sent = 0
        self._most = sys.maxsize
        """Bytes; there was no memory for more."""

    def put(self, pieces: Sequence[memoryview]) -> bytes | None:
        """Copy the bytes there; returns where they are.

        None: the last ones have not been taken yet, or there is no memory for these.
        """
        nbytes = sum(len(piece) for piece in pieces)
        if self._map is not None and _TAKEN.unpack_from(self._map)[0] != self._sent:
            return None
        if self._map is None or len(self._map) < _HEAD + nbytes:
            self._make(nbytes)
        if self._map is None:
            return None
        here, start = np.frombuffer(self._map, dtype=np.uint8), _HEAD
        for piece in pieces:
            here[start : start + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            start += len(piece)
        self._sent += 1
        return _PLACE.pack(_MAGIC, os.getpid(), self._file, self._generation, self._sent, nbytes)

    def _make(self, nbytes: int) -> None:
        self.close()
        if nbytes > self._most:
            return
        try:
            self._file, self._map = make_memory(_HEAD + nbytes)
        except OSError as error:
            log.info("messages of %s bytes or more go through sockets: %s", nbytes, error)
            self._most = nbytes - 1
            return
        self._generation = next(_generations)
        self._sent = 0

    def close(self) -> None:
        """Release it."""
        if self._map is not None:
            self._map = None
            os.close(self._file)


class Incoming:
    """The memory through which others write to one node."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int, int], mmap.mmap] = {}
        self._to_be_taken: tuple[mmap.mmap, int] | None = None

    def get(self, sender: str, place: bytes) -> SharedFrame:
        """The bytes at this place, valid until `taken` is called.

        Raises:
            SharedMemoryError: There is no such place, or it is not what it should be.
        """
        if len(place) != _PLACE.size or not place.startswith(_MAGIC):
            raise SharedMemoryError(f"{sender} sent a place of {len(place)} bytes that is not one of ours")
        _, pid, file, generation, number, nbytes = _PLACE.unpack(place)
        known = self._maps.get((sender, pid, generation))
        if known is None:
            known = open_memory(sender, pid, file)
            # A sender that has made larger memory does not use the old one again.
            for key in [key for key in self._maps if key[0] == sender]:
                del self._maps[key]
            self._maps[sender, pid, generation] = known
        if not 0 <= nbytes <= len(known) - _HEAD or number < 0:
            raise SharedMemoryError(f"{sender} says that {nbytes} bytes are in memory of {len(known) - _HEAD}")
        self._to_be_taken = (known, number)
        return SharedFrame(memoryview(known)[_HEAD : _HEAD + nbytes])

    def taken(self) -> None:
        """Let the sender put the next bytes where the last ones were."""
        if self._to_be_taken is not None:
            known, number = self._to_be_taken
            self._to_be_taken = None
            _TAKEN.pack_into(known, 0, number)


class SharedFrame:
    """Bytes in shared memory, in the form of a ZeroMQ frame."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
