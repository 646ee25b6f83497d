"""The connections of one group of processes, by torch.distributed: gloo on CPUs and shared GPUs, NCCL where each
process has a GPU of its own.

Each group is a process group of its own, made directly from the store: servers and communicators need no ranks in
torchrun's world, and a user's own `init_process_group` is left alone. A group has up to four channels, so that one
bucket is summed while another travels.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.talk.forks import keep_garbage_from_forks
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import read_when_set

_ASK_EVERY_S = 1e-4
_TICK = timedelta(milliseconds=200)
"""How long a wait lasts before Python may look at its signals."""
_PATIENCE = timedelta(hours=24)
"""Workers may compute that long between two collectives; a process that dies is noticed at once, by its connections."""
_TIMEOUT_CAN_CHANGE = hasattr(dist.ProcessGroupGloo, "set_timeout")
"""Whether connecting can have another limit than collectives: not with older versions of torch."""


class Work(Protocol):
    """A collective under way."""

    def is_completed(self) -> bool:
        """Whether it is over, one way or the other."""

    def wait(self, timeout: timedelta = ...) -> object:
        """Wait this long at most; raises RuntimeError if it is not over by then, or has failed."""


class _ProcessGroup(Protocol):
    """What gloo's and NCCL's groups share, which torch's types do not say."""

    def allreduce(self, tensors: list[Tensor], options: object) -> Work: ...

    def reduce(self, tensors: list[Tensor], options: object) -> Work: ...

    def broadcast(self, tensors: list[Tensor], options: object) -> Work: ...

    def alltoall_base(
        self, output: Tensor, given: Tensor, outputs: list[int], inputs: list[int], options: object
    ) -> Work: ...


class MemorySums(Protocol):
    """Sums through memory that all members have; `talk.shared_sums` has them."""

    @property
    def device(self) -> torch.device:
        """Of the tensors that are summed here."""

    def takes(self, values: Tensor) -> bool:
        """Whether such a tensor is summed so."""

    def all_reduce(self, values: Tensor) -> Work:
        """Start a sum."""

    def close(self, *, abandon: bool = False) -> None:
        """Leave the group."""


class MemoryMeeting(Protocol):
    """Finding out whether there is such memory; `talk.shared_meeting` does."""

    offer: str

    def open(
        self, said: Sequence[bytes], agree: Callable[[bool], bool], on_wait: Callable[[], None]
    ) -> Sequence[MemorySums]:
        """The ways to sum in it, each for tensors of its kind; none: there is no such memory."""

    def close(self) -> None:
        """It is over, one way or the other."""


@dataclass(frozen=True)
class Wiring:
    """How this process can reach the others for collectives."""

    store: dist.Store
    backend: str
    host: str
    """The address to listen on."""
    timeout_s: float = 120.0
    """How long to wait for the other members of a group."""
    on_wait: Callable[[], None] = lambda: None
    """Called while waiting for them; it may know of one that will not come."""
    direct_bytes: int = 0
    """What has at most so many bytes is summed in one hop."""


class Channels:
    """One member's connections to the rest of its group. A group of one has none: its collectives are over at once."""

    def __init__(
        self, name: str, member: int, size: int, wiring: Wiring, count: int, meeting: MemoryMeeting | None = None
    ) -> None:
        """`meeting`: where members may find out that they can sum through memory."""
        self.name = name
        self.member = member
        self.size = size
        self._asks = wiring.backend == "nccl"
        self._direct_bytes = 0 if self._asks else wiring.direct_bytes
        self._memory: Sequence[MemorySums] = ()
        if size > 1:
            self._memory = _meet(name, member, size, wiring, meeting)
        self.within_gpu = any(memory.device.type == "cuda" for memory in self._memory)
        """Whether tensors are summed on the one GPU that all members share, and small ones on the host."""
        self._groups: list[_ProcessGroup] = []
        self._under_way: list[Work] = []
        try:
            for number in range(count if size > 1 else 0):
                self._groups.append(_connect(name, number, member, size, wiring, count))
        except BaseException:  # a member has died, say: nobody will close what has not been made
            self.close(abandon=True)
            raise

    def all_reduce(self, values: Tensor, channel: int = 0) -> list[Work]:
        """Start the sum; every member must start the same ones in the same order."""
        if not self._groups:
            return []
        for memory in self._memory:
            if memory.takes(values):
                return [memory.all_reduce(values)]
        group = self._groups[channel % len(self._groups)]
        if values.nbytes <= self._direct_bytes and values.device.type == "cpu":
            return [self._begun(ExchangedSum(group, values, self.size))]
        return [self._begun(group.allreduce([values], dist.AllreduceOptions()))]

    def reduce(self, values: Tensor, root: int) -> list[Work]:
        """Start the sum, for one member only."""
        if not self._groups:
            return []
        # On the first channel alone: these are not sent in buckets.
        options = dist.ReduceOptions()
        options.rootRank = root
        return [self._begun(self._groups[0].reduce([values], options))]

    def broadcast(self, values: Tensor, root: int) -> list[Work]:
        """Start sending one member's values to all."""
        if not self._groups:
            return []
        options = dist.BroadcastOptions()
        options.rootRank = root
        return [self._begun(self._groups[0].broadcast([values], options))]

    def _begun(self, work: Work) -> Work:
        # Each holds its tensor, whose memory is to be used again, and of a GPU's page-locked memory as well.
        self._under_way = [each for each in self._under_way if not each.is_completed()]
        self._under_way.append(work)
        return AskedWork(work) if self._asks else work

    def close(self, *, abandon: bool = False) -> None:
        """Let go of the connections: their threads must have ended before the process does.

        Args:
            abandon: A member is gone, perhaps without a word: do not wait for collectives that are under way.
        """
        memory, self._memory = self._memory, ()
        for each in memory:
            each.close(abandon=abandon)
        if abandon:
            # A group that is freed waits for them, for as long as a collective may take; gloo's abort does not end
            # them. One reference too many, and it is not freed: its threads end with the process, if not before.
            for group in self._groups:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            _abandoned.append((self._groups, self._under_way))
            self._groups, self._under_way = [], []
        self._groups.clear()
        _free_abandoned()


_abandoned: list[tuple[list[_ProcessGroup], list[Work]]] = []
"""Groups that were left while collectives were under way, and those. A peer that was only stopped may still write into
their tensors, which are kept with them."""


def _free_abandoned() -> None:
    """Free the groups whose collectives have all failed by now, since their peers are gone: nothing is waited for."""
    for entry in [entry for entry in _abandoned if all(work.is_completed() for work in entry[1])]:
        _abandoned.remove(entry)
        for group in entry[0]:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))


class ExchangedSum:
    """A sum for which every member sends its vector to every other, at once: one hop, where gloo's ring has 2(n−1).

    Added up by rank, on every member alike.
    """

    def __init__(self, group: _ProcessGroup, values: Tensor, size: int) -> None:
        self._values = values
        self._all = values.new_empty(size, len(values))
        self._given = values.expand(size, -1).contiguous()  # kept: gloo reads it until the exchange is over
        self._is_summed = False
        self._work = group.alltoall_base(self._all.view(-1), self._given.view(-1), [], [], dist.AllToAllOptions())

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        self._work.wait(timeout)
        if not self._is_summed:
            self._is_summed = True
            first, *others = self._all
            self._values.copy_(first)
            for other in others:
                self._values += other


class AskedWork:
    """Work of NCCL. A wait that is too short ends its communicator, so this asks until it is done."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._work.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("timed out")
            time.sleep(_ASK_EVERY_S)
        # Although it is over: this raises what went wrong, and makes the current stream wait for the result.
        self._work.wait()  # it is over: this tells how


def finish(works: Iterable[Work], group: str, on_tick: Callable[[], None]) -> None:
    """Wait until all of these are over, and call `on_tick` now and then while waiting.

    Raises:
        PeerLost: A member is gone.
    """
    for work in works:
        asked_again = False
        while True:
            try:
                work.wait(_TICK)
                break
            except RuntimeError as error:
                if not work.is_completed():
                    on_tick()  # only the tick is over
                elif asked_again:
                    reason = str(error).splitlines()[0].rsplit("]", 1)[-1].strip()
                    raise PeerLost(f"a member of {group} is gone: {reason}") from error
                else:
                    asked_again = True  # it may have ended well just after the tick: the next wait tells


def _meet(name: str, member: int, size: int, wiring: Wiring, meeting: MemoryMeeting | None) -> Sequence[MemorySums]:
    """Wait until all members are about to connect: making a group hears nothing of one that died before.

    Returns:
        The ways to sum through memory that all members have.
    """
    if meeting is None:
        _exchange("here", "", name, member, size, wiring)
        return ()
    try:
        said = _exchange("here", meeting.offer, name, member, size, wiring)
        return meeting.open(said, partial(_all_agree, name, member, size, wiring), wiring.on_wait)
    finally:
        meeting.close()


def _all_agree(name: str, member: int, size: int, wiring: Wiring, mine: bool) -> bool:
    """Whether all members say yes."""
    return all(said == b"yes" for said in _exchange("agreed", "yes" if mine else "no", name, member, size, wiring))


def _exchange(what: str, mine: str, name: str, member: int, size: int, wiring: Wiring) -> list[bytes]:
    """What each member says."""
    store = dist.PrefixStore(f"group/{name}", wiring.store)
    store.set(f"{what}/{member}", mine)
    return [
        read_when_set(store, f"{what}/{other}", f"member {other} of {name}", wiring.timeout_s, wiring.on_wait)
        for other in range(size)
    ]


def _connect(name: str, number: int, member: int, size: int, wiring: Wiring, count: int) -> _ProcessGroup:
    """Make one group, in a thread: making it waits for members without an end, and one may die in that moment."""
    made: list[_ProcessGroup] = []
    failed: list[Exception] = []
    over = threading.Event()

    def make() -> None:
        try:
            made.append(_make(name, number, member, size, wiring, count, over))
        except Exception as error:  # in a thread it would be lost
            failed.append(error)

    thread = threading.Thread(target=make, name="ownpace-connect", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_TICK.total_seconds())
            if thread.is_alive():
                wiring.on_wait()
    finally:
        over.set()  # if nobody wants the group any more, the thread need not wait for its members
    if failed:
        wiring.on_wait()  # which may know better what it means
        if not isinstance(failed[0], RuntimeError):  # not of torch's: an address that no member wrote, say
            raise failed[0]
        raise PeerLost(f"a member of {name} is gone: {str(failed[0]).splitlines()[0]}") from failed[0]
    return made[0]


def _make(
    name: str, number: int, member: int, size: int, wiring: Wiring, count: int, over: threading.Event
) -> _ProcessGroup:
    keep_garbage_from_forks()
    # A prefix for each channel: groups that meet at the same keys would mix up their addresses.
    base = wiring.store
    if isinstance(base, SealedStore):
        # Threads of NCCL's ask it at any time, even while Python ends.
        base = base.unsealed if wiring.backend == "nccl" else base.until(over)
    store = dist.PrefixStore(f"group/{name}/{number}", base)
    if wiring.backend == "nccl":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = _PATIENCE
        return cast(_ProcessGroup, dist.ProcessGroupNCCL(store, member, size, nccl))
    gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch exports no other name for it
    # On the address of this run: by default gloo listens wherever the host name leads.
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=wiring.host)]
    # For a member that dies while it connects: gloo waits for five times as long, and nothing else ends that.
    gloo._timeout = timedelta(seconds=wiring.timeout_s) if _TIMEOUT_CAN_CHANGE else _PATIENCE
    # Channels already work side by side; more threads would only compete for the cores.
    gloo._threads = 1 if count > 1 else 2
    group = dist.ProcessGroupGloo(store, member, size, gloo)
    if _TIMEOUT_CAN_CHANGE:
        group.set_timeout(_PATIENCE)
    return cast(_ProcessGroup, group)
