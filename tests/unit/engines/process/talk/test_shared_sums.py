"""Sums through memory that all members have: the same bits everywhere, whatever their sizes, order and delays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract.errors import InputError, PeerLost
from ownpace.engines.process.meet.rendezvous import LOOPBACK, local_store
from ownpace.engines.process.talk import futex, shared_memory
from ownpace.engines.process.talk.channels import Channels, Wiring, finish
from ownpace.engines.process.talk.shared_meeting import Offer, SharedMeeting
from ownpace.engines.process.talk.shared_slots import Board, HostSlots, Peers
from ownpace.engines.process.talk.shared_sums import SharedSum, SharedSums

pytestmark = pytest.mark.skipif(not futex.is_available(), reason="no futex here: sums go through sockets")
ROOM = 4096


def _sums(size: int, room: int = ROOM, on_wait: Callable[[], None] = lambda: None) -> list[SharedSums]:
    """All members' parts in one group, in this process."""
    maps = [shared_memory.make_memory(Board.nbytes(room))[1] for _ in range(size)]
    boards = [Board(each) for each in maps]
    counts, slots = [board.on_host for board in boards], HostSlots([board.tensors() for board in boards])
    return [SharedSums("workers", m, Peers([os.getpid()] * size), on_wait, counts, slots, room) for m in range(size)]


class Borrowed(HostSlots):
    """Tensors whose owners must not end before the others have let go of them, as those of a GPU."""

    device = torch.device("meta")

    def __init__(self, tensors: list[Tensor], ends: list[str]) -> None:
        super().__init__(tensors)
        self._ends = ends

    def let_go(self) -> None:
        self._ends.append("let go")

    def close(self, *, abandon: bool) -> None:
        self._ends.append("abandoned" if abandon else "closed")


def test_nobody_ends_before_all_have_read_his_tensors_and_let_go_of_them():
    boards = [Board(shared_memory.make_memory(Board.nbytes(ROOM))[1]) for _ in range(3)]
    counts, ends = [board.on_host for board in boards], list[str]()
    slots = Borrowed([board.tensors() for board in boards], ends)
    members = [SharedSums("workers", m, Peers([os.getpid()] * 3), _nothing, counts, slots, ROOM) for m in range(3)]

    def take_part(member: int) -> None:
        finish([members[member].all_reduce(torch.ones(4))], "workers", _nothing)
        time.sleep(0.1 * member)
        members[member].close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(take_part, range(3)))
    assert ends == ["let go"] * 3 + ["closed"] * 3


def _nothing() -> None:
    pass


def _in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


@pytest.mark.parametrize("seed", range(6))
def test_sums_of_any_size_in_any_order_have_the_same_bits_everywhere(seed: int):
    """Each member awaits in an order of its own, as far as the room allows; places are used again many times."""
    draw = random.Random(seed)
    size, count = draw.randint(2, 4), 300
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    kinds = [(draw.choice(dtypes), draw.randint(1, 200)) for _ in range(count)]
    torch.manual_seed(seed)
    given = [[(torch.randn(n) * 100).to(kind) for kind, n in kinds] for _ in range(size)]
    members = _sums(size)

    def take_part(member: int) -> list[Tensor]:
        own, values, open_ = random.Random(seed * 31 + member), [each.clone() for each in given[member]], []
        for each in values:
            open_.append(members[member].all_reduce(each))
            while len(open_) > 3 or (open_ and own.random() < 0.4):
                finish([open_.pop(own.randrange(len(open_)))], "workers", lambda: None)
            if own.random() < 0.02:
                time.sleep(0.002)
        finish(open_, "workers", lambda: None)
        return values

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(take_part, range(size)))
    for number in range(count):
        expected = _in_order([given[m][number] for m in range(size)])
        for values in found:
            assert torch.equal(values[number], expected), f"sum {number} of {kinds[number]}"


def test_a_place_is_not_used_again_before_all_have_read_it():
    """One member is a whole round behind: the other waits with its next tensor, and both get what they should."""
    waits = threading.Event()
    fast, slow = _sums(2, on_wait=waits.set)
    ones, found = torch.ones(ROOM // 16), []  # four tensors fill the room

    def hurry() -> None:
        for number in range(6):
            found.append(ones * number)
            finish([fast.all_reduce(found[-1])], "workers", lambda: None)

    mine = [ones * 10 * number for number in range(6)]
    works = [slow.all_reduce(each) for each in mine[:4]]
    thread = threading.Thread(target=hurry)
    thread.start()
    assert waits.wait(60)
    assert len(found) == 5  # its place is that of the first, which has not been read on the other side
    finish(works, "workers", lambda: None)
    for each in mine[4:]:
        finish([slow.all_reduce(each)], "workers", lambda: None)
    thread.join(60)
    assert [float(each[0]) for each in found] == [float(each[0]) for each in mine] == [11.0 * n for n in range(6)]


def test_it_is_over_when_all_parts_are_there_and_a_wait_is_no_longer_than_asked_for():
    first, second = _sums(2)
    values = torch.ones(3)
    work = first.all_reduce(values)
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(milliseconds=1))
    second.all_reduce(torch.full((3,), 2.0))
    assert work.is_completed()
    assert values.tolist() == [1, 1, 1]  # made when it is waited for, not before
    work.wait()
    work.wait()  # once more: it must not be added again
    assert values.tolist() == [3, 3, 3]


def test_a_tensor_that_is_too_large_or_not_in_one_piece_goes_another_way():
    (one, _) = _sums(2)
    assert one.takes(torch.zeros(ROOM // 8))
    assert not one.takes(torch.zeros(ROOM // 8 + 1))
    assert not one.takes(torch.zeros(0))
    assert not one.takes(torch.zeros(8, 8).t())
    many = _sums(5, 1 << 22)[0]
    assert many.takes(torch.zeros(1 << 16))
    assert not many.takes(torch.zeros((1 << 16) + 1))  # read by five, it costs more than a ring


def _channels(member: int, size: int, port: int, like: Tensor) -> Channels:
    store: Any = dist.TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False)
    return Channels(
        "workers", member, size, Wiring(store, "gloo", LOOPBACK, 60), 1,
        SharedMeeting("workers", member, size, like.nbytes, like),
    )  # fmt: skip


def test_sockets_can_be_asked_for(monkeypatch: pytest.MonkeyPatch):
    like = torch.zeros(3)
    assert SharedMeeting("workers", 0, 2, like.nbytes, like).offer
    monkeypatch.setenv("OWNPACE_SUMS", "sockets")
    assert not SharedMeeting("workers", 0, 2, like.nbytes, like).offer
    monkeypatch.setenv("OWNPACE_SUMS", "socket")
    with pytest.raises(InputError, match=r"'socket'.*sockets"):
        SharedMeeting("workers", 0, 2, like.nbytes, like)


@pytest.mark.parametrize(
    "how", ["all", "one without memory", "one that lies", "one from elsewhere", "one on a copy of this machine"]
)
def test_all_members_go_the_same_way(how: str):
    """Where one cannot, none does; the sums are right either way."""
    own, _ = local_store()
    like = torch.zeros(100)

    def take_part(member: int) -> tuple[bool, Tensor]:
        meeting = SharedMeeting("workers", member, 3, like.nbytes, like)
        if member == 1:
            said = json.loads(meeting.offer)
            meeting.offer = {
                "all": meeting.offer,
                "one without memory": "",
                "one that lies": json.dumps({**said, "file": 9999}),
                "one on a copy of this machine": json.dumps({**said, "label": said["label"] ^ 1}),
                "one from elsewhere": json.dumps({**said, "identity": "other"}),
            }[how]
        store: Any = dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False)
        channels = Channels("workers", member, 3, Wiring(store, "gloo", LOOPBACK, 60), 1, meeting)
        values = like + member
        works = channels.all_reduce(values)
        finish(works, "workers", lambda: None)
        channels.close()
        return isinstance(works[0], SharedSum), values

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(take_part, range(3)))
    assert [through_memory for through_memory, _ in found] == [how == "all"] * 3
    assert all(torch.equal(values, like + 3) for _, values in found)


_OFFER = {"identity": "a", "kind": "cpu", "pid": 1, "file": 1, "label": 1}


@pytest.mark.parametrize(
    "said",
    [b"", b"{}", b"[1]", b"null", b"\xff"]
    + [
        json.dumps(_OFFER | bad).encode()
        for bad in ({"identity": 1}, {"label": ""}, {"pid": -1}, {"file": True}, {"more": 1})
    ],
)
def test_what_is_no_offer_is_none(said: bytes):
    assert Offer.read(said) is None


@pytest.mark.parametrize("kind", ["net", "pid", "user"])
def test_processes_in_other_namespaces_are_not_on_one_host(kind: str, monkeypatch: pytest.MonkeyPatch):
    """They have links of their own, cannot find each other's memory, or may not open it."""
    here, read = shared_memory.identity(), os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: f"{kind}:[1]" if path.endswith(kind) else read(path))
    assert shared_memory.identity() not in ("", here)


_DIES = """
import sys, os, signal, torch
sys.path.insert(0, {folder!r})
from test_shared_sums import _channels
from ownpace.engines.process.talk.channels import finish
channels = _channels(1, 2, {port}, torch.zeros(10))
finish(channels.all_reduce(torch.ones(10)), "workers", lambda: None)
print("one", flush=True)
{then}
"""


@pytest.mark.parametrize("takes_part", [True, False])
def test_a_process_that_ends_is_noticed_but_what_it_laid_down_counts(takes_part: bool):
    own, _ = local_store()
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    then = f"channels.all_reduce(torch.ones(10)); {kill}" if takes_part else kill
    script = _DIES.format(folder=str(Path(__file__).parent), port=own.port, then=then)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        channels = _channels(0, 2, own.port, torch.zeros(10))
        finish(channels.all_reduce(torch.ones(10)), "workers", lambda: None)
        other.wait(60)
        values = torch.ones(10)
        works = channels.all_reduce(values)
        if takes_part:
            finish(works, "workers", lambda: None)
            assert values.tolist() == [2.0] * 10
        else:
            with pytest.raises(PeerLost, match="a member of workers is gone: the process of member 1 has ended"):
                finish(works, "workers", lambda: None)
        channels.close(abandon=True)


def _pidfds() -> int:
    links = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return sum("pidfd" in os.readlink(link) for link in links if Path(link).is_symlink())  # noqa: PTH115


@pytest.mark.parametrize("when", ["one of them never agrees", "one of them never connects"])
def test_one_that_dies_while_they_meet_leaves_nothing_open(when: str):
    own, _ = local_store()
    like, before = torch.zeros(10), _pidfds()
    store: Any = dist.TCPStore(LOOPBACK, own.port, is_master=False, wait_for_workers=False)
    other = SharedMeeting("workers", 1, 2, like.nbytes, like)
    store.set("group/workers/here/1", other.offer)
    if when == "one of them never connects":
        store.set("group/workers/agreed/1", "yes")
    seen = []

    def hear() -> None:
        seen.append(_pidfds())
        raise PeerLost("the hub says so")

    with pytest.raises(PeerLost, match="the hub says so"):
        Channels(
            "workers", 0, 2, Wiring(store, "gloo", LOOPBACK, 60, on_wait=hear), 1,
            SharedMeeting("workers", 0, 2, like.nbytes, like),
        )  # fmt: skip
    assert seen == [before + 2]
    assert _pidfds() == before
    other.close()


def test_many_members_have_no_room_for_what_they_never_sum_there():
    """All of it is allocated at once, and large tensors of many members go through sockets."""
    like = torch.zeros(1 << 23)
    rooms = []
    for size in (4, 8):
        meeting = SharedMeeting("workers", 0, size, like.nbytes, like)
        offer = Offer.read(meeting.offer.encode())
        assert offer is not None
        rooms.append(os.fstat(offer.file).st_size)
        meeting.close()
    assert rooms[0] > 3 * like.nbytes
    assert rooms[1] < like.nbytes
