"""Sums of a group whose members are all on one host, through memory that all of them have.

    start:   lay the tensor down in one's own memory; count it
    done:    all members have counted theirs
    wait:    add up all members' tensors, by rank, into one's own; count that, too

Each member makes the whole sum itself, so a sum needs one meeting, not two, and nobody's thread or processor but one's
own; all have the same bits, since all add in the same order. A socket costs two copies and a wake-up for each hop, and
gloo's ring has 2(n−1) hops. Every tensor is read n times, though: for many members, or large tensors of a CPU and more
than a few, the ring moves fewer bytes, and they go that way (`_is_cheaper`).

Memory is used in a ring: the place of a sum is used again when all members have made it. That is waited for, though
seldom, because there is room for several whole gradients. All members start the same sums in the same order, so
all find the same places without a word.

For GPUs there is `gpu_slots`: processes that share one. Where each has its own, NCCL is better.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from ownpace.engines.process.talk.channels import Work, finish
from ownpace.engines.process.talk.shared_slots import Count, Peers, Slots, SumCounts

MOST_LIVE = 64
"""Sums whose places are in use: GPUs have so many events."""
_ALIGNMENT = 64
_PATIENCE = timedelta(hours=24)
_LEAVE = timedelta(seconds=10)
"""How long a member that leaves waits until the others have read what it laid down."""
_ASK_EVERY_S = 5e-5
_SMALL_BYTES = 1 << 18
_FEW = 4
"""Members, of which each may read all tensors of a CPU, however large."""


class SharedSums:
    """One member's part in the sums of its group."""

    def __init__(
        self,
        name: str,
        member: int,
        peers: Peers,
        on_wait: Callable[[], None],
        counts: Sequence[SumCounts],
        slots: Slots,
        room: int,
    ) -> None:
        self._name = name
        self._member = member
        self._counts = counts
        self._slots = slots
        self._peers = peers
        self._room = room
        self._on_wait = on_wait
        self._live: deque[SharedSum] = deque()
        self._started = 0
        self._made: set[int] = set()
        self._made_through = 0
        self._next = 0

    @property
    def device(self) -> torch.device:
        """Of the tensors that are summed here."""
        return self._slots.device

    def takes(self, values: Tensor) -> bool:
        """Whether such a tensor is summed here. The same on all members, since it follows from its kind alone."""
        fits = values.device == self._slots.device and values.is_contiguous() and 0 < values.nbytes <= self._room // 2
        return fits and _is_cheaper(len(self._counts), values)

    def all_reduce(self, values: Tensor) -> SharedSum:
        """Start a sum; `values` will hold it."""
        number, begin = self._started, self._reserve(values.nbytes)
        parts = Meeting([each.arrived for each in self._counts], number, self._slots.has_arrived, self._peers)
        work = SharedSum(self, parts, number, begin, values.detach().view(-1))
        self._slots.of(self._member, begin, values.nbytes).view(values.dtype).copy_(work.values)
        self._slots.arrive(number)
        self._started += 1
        self._live.append(work)
        # Last: from now on the others read it.
        self._counts[self._member].arrived.tell(self._started)
        return work

    def _reserve(self, nbytes: int) -> int:
        """Where the next tensor goes; waits until all have read what was there."""
        begin, live = self._next, self._live
        freed = [live.popleft()] if len(live) >= MOST_LIVE else []
        if begin + nbytes > self._room:
            while live and live[0].begin >= begin:
                freed.append(live.popleft())
            begin = 0
        # Those of the round before, in the order of their places: the first that is clear of this one ends it.
        while live and live[0].begin < begin + nbytes and begin < live[0].end:
            freed.append(live.popleft())
        for work in freed:
            finish([work], self._name, self._on_wait)
            finish([self._reading(work.number)], self._name, self._on_wait)
        self._next = (begin + nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        return begin

    def _reading(self, number: int) -> Meeting:
        """When all have read the tensors of a sum."""
        return Meeting([each.taken for each in self._counts], number, self._slots.has_taken, self._peers)

    def add_up(self, work: SharedSum) -> None:
        """Make a sum of which all parts have arrived."""
        values, number = work.values, work.number
        self._slots.await_arrived(number)
        first, second, *others = (
            self._slots.of(member, work.begin, values.nbytes).view(values.dtype) for member in range(len(self._counts))
        )
        # In place and by rank, whoever adds: the same bits everywhere.
        torch.add(first, second, out=values)
        for other in others:
            values.add_(other)
        self._slots.take(number)
        self._made.add(number)
        # Layers are asked for in another order than that in which they left.
        while self._made_through in self._made:
            self._made.remove(self._made_through)
            self._made_through += 1
        self._counts[self._member].taken.tell(self._made_through)

    def _agree(self, count: int) -> None:
        """Say that this member has read all tensors of so many sums, and wait until all say so."""
        self._counts[self._member].taken.tell(count)
        if count:
            self._reading(count - 1).wait(_LEAVE)

    def close(self, *, abandon: bool = False) -> None:
        """Leave the group. The others may still read what this member has laid down last; `abandon`: do not wait."""
        # A CPU's memory stays for those who have opened it, a GPU's ends with its process.
        if not abandon and self._slots.device.type != "cpu":
            for work in self._live:
                self._slots.take(work.number)
            with suppress(RuntimeError):  # gone, or late: they read no more, or what a CPU still keeps for them
                self._agree(self._started)
                self._slots.let_go()
                # Nor does anyone hold it any more: torch complains of processes that end before that.
                self._agree(self._started + 1)
        self._live.clear()
        self._slots.close(abandon=abandon)
        self._peers.close()


@dataclass(eq=False, slots=True)
class SharedSum:
    """A sum under way."""

    _sums: SharedSums
    _parts: Meeting
    number: int
    begin: int
    values: Tensor
    _is_made: bool = False

    @property
    def end(self) -> int:
        """Where its place ends."""
        return self.begin + self.values.nbytes

    def is_completed(self) -> bool:
        """Whether all parts are there, or one will not come."""
        return self._is_made or self._parts.is_completed()

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        """Make the sum, as soon as all parts are there.

        Raises:
            RuntimeError: They are not by then, or one will not come.
        """
        if not self._is_made:
            self._parts.wait(timeout)
            self._make()

    def _make(self) -> None:
        self._sums.add_up(self)
        self._is_made = True

    def is_queued(self) -> bool:
        """Whether all members have laid their parts down, which a GPU may still have to do."""
        return self._is_made or self._parts.is_counted()

    def queue(self, timeout: timedelta) -> None:
        """Make the sum as soon as all parts are laid down: a GPU waits for them, Python does not."""
        if not self._is_made:
            self._parts.wait_for_counts(timeout)
            self._make()


@dataclass(frozen=True, eq=False, slots=True)
class _Ahead:
    """A sum that is over for Python as soon as a GPU has been told to make it."""

    _sum: SharedSum

    def is_completed(self) -> bool:
        return self._sum.is_queued()

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        self._sum.queue(timeout)


def ahead(works: Iterable[Work]) -> list[Work]:
    """The same, but where sums are made on a GPU that all members share, only what a GPU does next waits for them."""
    return [_Ahead(work) if isinstance(work, SharedSum) else work for work in works]


@dataclass(eq=False, slots=True)
class Meeting:
    """The moment when all members have done something with one sum."""

    _counts: Sequence[Count]
    _number: int
    _is_there: Callable[[int, int], bool]
    """Whether a member that has counted a sum has really done it: a GPU may still be busy."""
    _peers: Peers
    _gone: str = ""

    def is_completed(self) -> bool:
        """Whether all have, or one never will."""
        return bool(self._gone) or self._missing() is None

    def is_counted(self) -> bool:
        """Whether all say so, or one never will."""
        return bool(self._gone) or all(count.value > self._number for count in self._counts)

    def _missing(self) -> int | None:
        for member, count in enumerate(self._counts):
            if count.value <= self._number or not self._is_there(member, self._number):
                return member
        return None

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        """Wait so long at most.

        Raises:
            RuntimeError: The time is over, or a process has ended that all others wait for.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        self.wait_for_counts(timeout)
        while self._missing() is not None:  # of a GPU, which nothing wakes one for
            if time.monotonic() > deadline:
                raise RuntimeError("timed out")
            time.sleep(_ASK_EVERY_S)

    def wait_for_counts(self, timeout: timedelta) -> None:
        """Wait until all say that they have: what a GPU does next may still have to wait."""
        deadline = time.monotonic() + timeout.total_seconds()
        for member, count in enumerate(self._counts):
            while count.value <= self._number:
                left_s = deadline - time.monotonic()
                if self._gone or left_s <= 0:
                    raise RuntimeError(self._gone or "timed out")
                count.wait(self._number + 1, left_s)
                # Asked before the last look at its count: a process may do its part, and then end in good order.
                if member in self._peers.gone() and count.value <= self._number:
                    self._gone = f"the process of member {member} has ended"


def most_in_use(size: int, device: torch.device) -> int | None:
    """Bytes that sums of so many members can have in use at most; None: any number."""
    return None if device.type != "cpu" or size <= _FEW else MOST_LIVE * _SMALL_BYTES


def _is_cheaper(size: int, values: Tensor) -> bool:
    """Whether reading every tensor n times is cheaper than sending it around a ring."""
    return values.device.type != "cpu" or size <= _FEW or values.nbytes <= _SMALL_BYTES
