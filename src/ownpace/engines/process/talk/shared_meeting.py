"""How the members of a group find out that they can sum through memory, and get hold of each other's.

Each says in the store who and where it is, and where its memory lies (`Offer`); then, whether it could open all others'
memory. Only where all could, all use it: one that went another way would be waited for without end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ownpace.core.contract.errors import SharedMemoryError, unknown
from ownpace.engines.process.talk import futex, shared_memory
from ownpace.engines.process.talk.gpu_slots import GpuSlots, kind_of
from ownpace.engines.process.talk.shared_slots import Board, HostSlots, Peers
from ownpace.engines.process.talk.shared_sums import SharedSums, most_in_use

log = logging.getLogger(__name__)
_MOST_MEMBERS = 8
"""Every tensor is read by all: with more members, a ring moves fewer bytes."""
_GRADIENTS = 3
"""Room for so many: one is summed, one that is still read, and one that has begun while others are a sum behind."""
_LEAST_ROOM, _MOST_ROOM = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Offer:
    """Where a member's memory is."""

    identity: str
    """Of its host and user."""
    kind: str
    """Of its tensors: "cpu", or which GPU's."""
    pid: int
    file: int
    label: int
    """What its memory begins with: another process with the same numbers, on a copy of the same virtual machine, has
    another."""

    @classmethod
    def read(cls, said: bytes) -> Offer | None:
        """None: it is not one."""
        with contextlib.suppress(ValueError, TypeError):
            offer = cls(**json.loads(said))
            are_words = isinstance(offer.identity, str) and isinstance(offer.kind, str)
            if are_words and all(type(each) is int and each >= 0 for each in (offer.pid, offer.file, offer.label)):
                return offer
        return None

    def written(self) -> str:
        """For the store."""
        return json.dumps(vars(self))


class SharedMeeting:
    """One member on the way to sums through memory. Whatever goes wrong on it, sums go through sockets instead."""

    def __init__(self, name: str, member: int, size: int, nbytes: int, like: Tensor) -> None:
        self._name = name
        self._member = member
        most = most_in_use(size, like.device)
        self._room = max(_LEAST_ROOM, _GRADIENTS * nbytes if most is None else min(_GRADIENTS * nbytes, most))
        self._file = -1
        self.offer = ""
        """To be shown to the others; empty: not with this member."""
        identity = shared_memory.identity() if futex.is_available() and _is_wanted() else ""
        if identity and 1 < size <= _MOST_MEMBERS and self._room <= _MOST_ROOM:
            try:
                self._make(identity, like.device)
            except (OSError, RuntimeError, SharedMemoryError) as error:
                log.info("sums of %s do not go through memory: %s", name, error)

    def _make(self, identity: str, device: torch.device) -> None:
        on_host = device.type == "cpu"
        self._host_room = self._room if on_host else _LEAST_ROOM  # of a GPU's group, for what goes along with tensors
        self._file, memory = shared_memory.make_memory(Board.nbytes(self._host_room))
        self._board = Board(memory)
        self._gpu = None if on_host else GpuSlots(self._member, self._room, device, self._board)
        self._board.label = secrets.randbits(63)
        self.offer = Offer(identity, kind_of(device), os.getpid(), self._file, self._board.label).written()

    def open(
        self, said: Sequence[bytes], agree: Callable[[bool], bool], on_wait: Callable[[], None]
    ) -> Sequence[SharedSums]:
        """Open the others' memory: the ways in which tensors can be summed in it; none, if it cannot be opened.

        Args:
            said: What all members have offered.
            agree: Tells the others whether it went well, and returns whether it did for all.
            on_wait: Called while the others are waited for.
        """
        offers = [offer for offer in map(Offer.read, said) if offer is not None]
        made: Sequence[SharedSums] = ()
        if len(offers) == len(said) and len({(offer.identity, offer.kind) for offer in offers}) == 1:
            try:
                made = self._open(offers, on_wait)
            except (OSError, SharedMemoryError) as error:
                log.info("sums of %s do not go through memory: %s", self._name, error)
            agreed = False
            try:
                agreed = agree(bool(made))  # one of them may die now, and that is told by an error
            finally:
                if not agreed:
                    for each in made:
                        each.close(abandon=True)
                    made = ()
        return made

    def close(self) -> None:
        """Forget how the memory is opened: all others have done so by now, or never will."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, offers: Sequence[Offer], on_wait: Callable[[], None]) -> Sequence[SharedSums]:
        # Before the memory: what is opened then belongs to the processes that are watched.
        peers = Peers([offer.pid for offer in offers])
        try:
            boards = [self._opened(member, offer) for member, offer in enumerate(offers)]
            tensors = [board.tensors() for board in boards]
            if any(len(each) != self._host_room for each in tensors):
                raise SharedMemoryError("members have memory of different sizes")
            if self._gpu is not None:
                self._gpu.open(boards)
        except (OSError, SharedMemoryError):
            peers.close()
            raise
        begin = partial(SharedSums, self._name, self._member, peers, on_wait)
        made = [begin([board.on_host for board in boards], HostSlots(tensors), self._host_room)]
        if self._gpu is not None:
            # First: it is closed first, and waits until others have read, which the other need not.
            made.insert(0, begin([board.on_gpu for board in boards], self._gpu, self._room))
        return made

    def _opened(self, member: int, offer: Offer) -> Board:
        if member == self._member:
            return self._board
        board = Board(shared_memory.open_memory(f"member {member} of {self._name}", offer.pid, offer.file))
        if board.label != offer.label:
            raise SharedMemoryError(f"member {member} of {self._name} is not the process that has its number here")
        return board


def _is_wanted() -> bool:
    """Whether the user has not forbidden it: to measure sockets, or because something is wrong with memory."""
    given = os.environ.get("OWNPACE_SUMS", "memory")
    if given not in ("memory", "sockets"):
        raise unknown("OWNPACE_SUMS", given, ("memory", "sockets"))
    return given == "memory"
