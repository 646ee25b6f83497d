"""Memory that one process fills once and another keeps: for whole states, which are larger than any message.

Nothing is copied on the receiver's side, and nothing encrypted: for a state of 134 MB that is most of the time for
which all workers would wait. It is memory as in `shared_memory`, with no name in any file system. Its first byte says
whether the receiver has it; the giver lets go of it then.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.engines.process.talk.shared_memory import file_of_memory, new_memory, seal

ALIGNED = 64
"""Bytes: each tensor begins at a multiple of this."""
_HEAD = ALIGNED
_TAKEN = b"\1"


class GivenMemory:
    """Memory on its way to another process."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        """Raises OSError: there is not so much memory, or no more files may be opened."""
        self.file = new_memory()
        try:
            # Written, not mapped: every page is there then, and none is cleared before.
            _write(self.file, memoryview(bytes(_HEAD)))
            for piece in pieces:
                _write(self.file, piece)
                _write(self.file, memoryview(bytes(-len(piece) % ALIGNED)))
            seal(self.file)
        except BaseException:
            os.close(self.file)
            raise

    @property
    def is_taken(self) -> bool:
        """Whether the receiver has it."""
        return os.pread(self.file, 1, 0) == _TAKEN

    def close(self) -> None:
        """Let go of it."""
        os.close(self.file)


def _write(file: int, data: memoryview) -> None:
    while data:  # one call writes 2 GiB at most
        data = data[os.write(file, data) :]


class TakenMemory:
    """Memory that another process has given. Who writes to it changes that of nobody else."""

    def __init__(self, owner: str, pid: int, file: int) -> None:
        """Raises SharedMemoryError: it cannot be opened, or is not what it should be."""
        with file_of_memory(owner, pid, file) as opened:
            self._memory = mmap.mmap(opened, 0, flags=mmap.MAP_PRIVATE)
            os.pwrite(opened, _TAKEN, 0)
        self._at = _HEAD

    def next(self, nbytes: int) -> Tensor:
        """The next bytes; they keep all of the memory alive.

        Raises:
            WireError: There are not so many.
        """
        begin = self._at
        if nbytes > len(self._memory) - begin:
            raise WireError(f"a tensor of {nbytes} bytes in memory that has {len(self._memory) - begin} left")
        self._at += nbytes + -nbytes % ALIGNED
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        # Not a part of one large tensor: torch's generators read a state from where such a one begins.
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=nbytes, offset=begin)
