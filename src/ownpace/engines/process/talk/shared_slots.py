"""Memory of a group's members on one host, in which each lays down what is to be summed, for all others to read."""

from __future__ import annotations

import mmap
import os
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ownpace.core.contract.errors import SharedMemoryError
from ownpace.engines.process.talk import futex

_HEAD = 1 << 16
"""Bytes in front of the tensors: four counts, each in a cache line of its own, and what a GPU's memory is known by."""
_WORDS = 8
"""Words of a cache line."""
_LABEL = struct.Struct("<q")
_LABEL_AT = 8  # behind the first count; it is written once
_DESCRIBED_AT = 256
_SLICE_S = 0.02
"""How long a wait lasts before one looks whether the other process is still there."""


class Count:
    """A number that one process raises and others wait for."""

    def __init__(self, memory: mmap.mmap, line: int) -> None:
        self._word = np.frombuffer(memory, dtype=np.int64, count=1, offset=8 * _WORDS * line)
        self._address = self._word.ctypes.data

    @property
    def value(self) -> int:
        """What it is now."""
        return int(self._word[0])

    def tell(self, value: int) -> None:
        """Raise it; by its owner alone, and after what it counts has been written."""
        self._word[0] = value
        futex.wake(self._address)

    def wait(self, value: int, timeout_s: float) -> None:
        """Wait until it is as high, but for a moment at most."""
        seen = int(self._word[0])
        if seen < value:
            futex.wait(self._address, seen, min(timeout_s, _SLICE_S))


@dataclass(frozen=True)
class SumCounts:
    """What others must know of a member's part in sums."""

    arrived: Count
    """How many tensors it has laid down."""
    taken: Count
    """How many sums it has made: it reads no tensors of these any more."""


class Board:
    """The memory of one member: counts; behind them, the tensors of a CPU."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._map = memory
        self.on_host = SumCounts(Count(memory, 0), Count(memory, 1))
        self.on_gpu = SumCounts(Count(memory, 2), Count(memory, 3))

    @staticmethod
    def nbytes(room: int) -> int:
        """The memory for so many bytes of tensors."""
        return _HEAD + room

    def tensors(self) -> Tensor:
        """The bytes of all tensors."""
        return torch.frombuffer(self._map, dtype=torch.uint8, offset=_HEAD)

    @property
    def label(self) -> int:
        """A number that no other memory has."""
        return int(_LABEL.unpack_from(self._map, _LABEL_AT)[0])

    @label.setter
    def label(self, number: int) -> None:
        _LABEL.pack_into(self._map, _LABEL_AT, number)

    def describe(self, what: bytes) -> None:
        """Write what others need to know of a GPU's memory, once."""
        if len(what) > _HEAD - _DESCRIBED_AT:
            raise SharedMemoryError(f"{len(what)} bytes describe a GPU's memory; there is room for {_HEAD}")
        self._map[_DESCRIBED_AT : _DESCRIBED_AT + len(what)] = what

    def described(self) -> bytes:
        """What the owner has written."""
        return bytes(self._map[_DESCRIBED_AT:_HEAD]).rstrip(b"\0")


class Slots(Protocol):
    """Where tensors are laid down, and whether they are really there: a GPU is told to write and does so later."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    def of(self, member: int, begin: int, nbytes: int) -> Tensor:
        """A part of a member's bytes."""

    def arrive(self, number: int) -> None:
        """This member's tensor for a sum has been laid down."""

    def has_arrived(self, member: int, number: int) -> bool:
        """Whether that of another is there, if it has been laid down."""

    def await_arrived(self, number: int) -> None:
        """Let what is done next wait until those of all are there, which have all been laid down."""

    def take(self, number: int) -> None:
        """This member has read all tensors of a sum."""

    def has_taken(self, member: int, number: int) -> bool:
        """Whether another has, if it says so."""

    def let_go(self) -> None:
        """Read no more of the others' memory."""

    def close(self, *, abandon: bool) -> None:
        """Let go of all memory; `abandon`: one of the others may be gone."""


class HostSlots:
    """Tensors of a CPU: what has been written is there."""

    device = torch.device("cpu")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def of(self, member: int, begin: int, nbytes: int) -> Tensor:
        return self._tensors[member][begin : begin + nbytes]

    def arrive(self, number: int) -> None:
        pass

    def has_arrived(self, member: int, number: int) -> bool:
        return True

    def await_arrived(self, number: int) -> None:
        pass

    def take(self, number: int) -> None:
        pass

    def has_taken(self, member: int, number: int) -> bool:
        return True

    def let_go(self) -> None:
        pass

    def close(self, *, abandon: bool) -> None:
        pass


class Peers:
    """The processes of the other members: whether one is gone, by what the system says."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Raises OSError if one is gone already, or no more files can be opened."""
        self._member: dict[int, int] = {}
        self._poll = select.poll()
        try:
            for member, pid in enumerate(pids):
                file = os.pidfd_open(pid)
                self._member[file] = member
                self._poll.register(file, select.POLLIN)
        except OSError:
            self.close()
            raise

    def gone(self) -> list[int]:
        """The members whose processes have ended."""
        return sorted(self._member[file] for file, _ in self._poll.poll(0))

    def close(self) -> None:
        """Forget them."""
        for file in self._member:
            os.close(file)
        self._member = {}
        self._poll = select.poll()
