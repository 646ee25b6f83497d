"""Mailboxes: messages come in order and whole, from peers that know the run's key and from no one else."""

from __future__ import annotations

import gc
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from ownpace.core.contract.errors import InputError, MachineDied, WireError
from ownpace.core.contract.values import Shard
from ownpace.engines.process.talk import shared_memory
from ownpace.engines.process.talk.control import Stop
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.regrouping import StateInMemory, StateOutline, StateTensor
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.states import from_memory, give
from ownpace.engines.process.talk.wire import Packet, pack, unpack
from ownpace.engines.process.talk.wire_header import Frame, Limits

SHARDS = (Shard(0, 0, 5), Shard(1, 5, 12))


class Mailboxes:
    """Some mailboxes of one process, which find each other."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}

    def open(self, name: str, key: RunKey, timeout_s: float = 60) -> Mailbox:
        self._mailboxes[name] = Mailbox(
            name, "127.0.0.1", key, lambda to: self._mailboxes[to].contact, timeout_s=timeout_s
        )
        return self._mailboxes[name]

    def close(self) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.close(now=True)


def arrived(mailbox: Mailbox) -> tuple[str, Sequence[Frame]]:
    """The next message, however busy the machine is."""
    message = mailbox.receive(60)
    assert message is not None
    return message


def tensor_of(packet: Packet) -> torch.Tensor:
    assert isinstance(packet.body, torch.Tensor)
    return packet.body


@pytest.fixture
def mailboxes():
    opened = Mailboxes()
    yield opened
    opened.close()


def test_messages_come_in_order_and_whole(mailboxes):
    key = RunKey.new()
    there, here = mailboxes.open("there", key), mailboxes.open("here", key)
    number, large = 2000, torch.randn(5 << 20)  # 20 MiB
    limits = Limits(SHARDS, large.numel())

    def write() -> None:
        for count in range(number):
            there.send("here", Packet(samples=count, control=Stop()))
        there.send("here", Packet(large))
        there.send("here", Packet(stop=True))

    writer = threading.Thread(target=write)
    writer.start()
    came: list[Packet] = []
    while not came or not came[-1].stop:
        name, frames = arrived(here)
        assert name == "there"
        came.append(unpack(frames, limits))
    writer.join()
    assert [packet.samples for packet in came[:number]] == list(range(number))
    assert torch.equal(tensor_of(came[number]), large)
    assert len(came) == number + 2
    assert not here.waiting
    here.send("there", Packet(samples=1))
    name, frames = arrived(there)
    assert (name, unpack(frames, limits).samples) == ("here", 1)


def test_nothing_comes_where_nothing_was_sent(mailboxes):
    mailbox = mailboxes.open("here", RunKey.new())
    assert mailbox.receive(0.01) is None
    assert not mailbox.waiting


def test_another_key_is_refused_at_once_and_can_be_closed(mailboxes):
    here, stranger = mailboxes.open("here", RunKey("ours")), mailboxes.open("stranger", RunKey("theirs"), timeout_s=60)
    begun = time.monotonic()
    for _ in range(2):  # a second attempt finds nothing half open
        with pytest.raises(InputError, match=r"here at tcp://127\.0\.0\.1:.* and stranger have different run keys"):
            stranger.send("here", Packet())
    assert time.monotonic() - begun < 20  # it is not waited for until the time is out
    assert here.receive(0.2) is None
    begun = time.monotonic()
    mailboxes.close()
    assert time.monotonic() - begun < 20


def test_who_does_not_answer_is_named(mailboxes):
    key = RunKey("ours")
    mailbox = Mailbox("here", "127.0.0.1", key, lambda to: "tcp://127.0.0.1:9", timeout_s=0.5)
    try:
        with pytest.raises(MachineDied, match=r"here cannot reach gone at tcp://127.0.0.1:9 within 0.5 s"):
            mailbox.send("gone", Packet())
    finally:
        mailbox.close(now=True)


def test_who_dies_while_a_line_to_it_is_opened_is_gone_and_not_a_stranger():
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()

    def die() -> None:
        connection, _ = listening.accept()
        listening.close()
        connection.close()

    threading.Thread(target=die, daemon=True).start()
    endpoint = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    mailbox = Mailbox("here", "127.0.0.1", RunKey("ours"), lambda to: endpoint, timeout_s=2.0)
    try:
        with pytest.raises(MachineDied, match=r"here cannot reach gone at"):
            mailbox.send("gone", Packet())
    finally:
        mailbox.close(now=True)


@pytest.mark.parametrize("knows", ["nothing", "the server's key"])
def test_strangers_get_nothing_through(mailboxes, knows):
    key = RunKey("ours")
    here, friend = mailboxes.open("here", key), mailboxes.open("friend", key)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.routing_id = b"friend"
        if knows == "the server's key":
            stranger.curve_serverkey = key.server_public
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.connect(here.contact.partition(" ")[0])
        stranger.send_multipart([b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))])
        assert here.receive(1) is None
    friend.send("here", Packet())  # it is open, for those who may write
    assert arrived(here)[0] == "friend"


@contextmanager
def friend_of(here: Mailbox, key: RunKey) -> Iterator[zmq.Socket[bytes]]:
    """A socket that knows a mailbox's key, and is no mailbox."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as friend:
        friend.linger = 0
        friend.routing_id = b"friend"
        friend.curve_serverkey = key.server_public
        friend.curve_publickey, friend.curve_secretkey = key.client_public, key.client_secret
        friend.connect(here.contact.partition(" ")[0])
        yield friend


def test_who_knows_the_key_needs_nothing_else(mailboxes):
    """What the strangers above lack is the key alone."""
    key = RunKey("ours")
    here = mailboxes.open("here", RunKey("ours"))
    with friend_of(here, key) as friend:
        friend.send_multipart([b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))])
        assert arrived(here)[0] == "friend"


@pytest.mark.parametrize("name", [b"stranger", b"", b"\xff\xfe", b"x" * 255])
def test_who_has_no_place_in_the_run_is_not_heard_whatever_it_sends(name, caplog):
    key = RunKey("ours")
    here = Mailbox("here", "127.0.0.1", key, lambda to: here.contact, hears={"here"}.__contains__)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        if name:
            stranger.routing_id = name
        stranger.curve_serverkey = key.server_public
        stranger.curve_publickey, stranger.curve_secretkey = key.client_public, key.client_secret
        stranger.connect(here.contact.partition(" ")[0])
        messages: list[list[bytes]] = [
            [b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))],
            [b"L", b"", b"", b"OWNPLACE" + bytes(40)],
            [b""],
            [b"X" * 100],
            10_000 * [b""],
        ]
        for message in messages:
            stranger.send_multipart(message)
        deadline = time.monotonic() + 60
        while here.unheard < len(messages) and time.monotonic() < deadline:
            assert here.receive(0.05) is None
    assert here.unheard == len(messages)
    assert len([record for record in caplog.records if "does not hear" in record.message]) == 1
    here.send("here", Packet(samples=3))
    assert arrived(here)[0] == "here"
    here.close(now=True)


@pytest.mark.parametrize("message", [[b""], [b"X"], [b"W" * 2], [b"L", b"", b""], [b"L"] * 5])
def test_a_message_of_no_kind_is_refused_and_its_sender_named(message):
    key = RunKey("ours")
    here = Mailbox("here", "127.0.0.1", key, lambda to: "")
    with friend_of(here, key) as friend:
        friend.send_multipart(message)
        with pytest.raises(WireError, match="friend sent what no node sends: a message of another kind"):
            here.receive(60)
    here.close(now=True)


@pytest.mark.parametrize(
    "contact",
    [
        "",
        "here",
        "ipc:///tmp/socket",
        "inproc://x",
        "tcp://",
        "tcp://a:b",
        "tcp://127.0.0.1:80 ../../etc",
        "tcp://a\n:1",
    ],
)
def test_what_a_store_says_is_connected_to_only_if_it_is_an_address(contact):
    here = Mailbox("here", "127.0.0.1", RunKey.new(), lambda to: contact)
    with pytest.raises(WireError, match="is not where there can listen; nobody of this run wrote that"):
        here.send("there", Packet())
    here.close(now=True)


def test_an_address_of_another_machine_cannot_be_listened_on():
    with pytest.raises(InputError, match=r"here cannot listen on 192\.0\.2\.1"):
        Mailbox("here", "192.0.2.1", RunKey.new(), lambda to: "")


def test_a_name_that_zeromq_does_not_take_is_refused_before_anything_is_opened():
    with pytest.raises(InputError, match="has 300 bytes; use at most 255"):
        Mailbox("x" * 300, "127.0.0.1", RunKey.new(), lambda to: "")


def test_large_tensors_go_through_shared_memory_and_small_ones_do_not(monkeypatch):
    """Between mailboxes that know each other to be on one host; every value comes through, again and again."""
    key = RunKey.new()
    mailboxes: dict[str, Mailbox] = {}
    for name in ("here", "there"):
        mailboxes[name] = Mailbox(name, "127.0.0.1", key, lambda to: mailboxes[to].contact)
    put = []
    original = shared_memory.Outgoing.put

    def watched(*given: Any) -> bytes | None:
        put.append(original(*given))
        return put[-1]

    monkeypatch.setattr(shared_memory.Outgoing, "put", watched)
    limits = Limits((Shard(0, 0, 1_000_000),), 1_000_000)
    try:
        for number in range(1, 6):
            tensor = torch.full((200_000 * number,), float(number))  # it grows: new memory each time
            for body in (tensor, tensor[:10]):
                mailboxes["here"].send("there", Packet(body))
                name, frames = arrived(mailboxes["there"])
                assert name == "here"
                assert torch.equal(tensor_of(unpack(frames, limits)), body)
            mailboxes["there"].receive(0.0)  # what was read is taken now
        assert [place is not None for place in put] == [True] * 5  # the small ones were not even tried
    finally:
        for mailbox in mailboxes.values():
            mailbox.close(now=True)


def test_what_is_not_taken_yet_is_not_overwritten():
    key = RunKey.new()
    mailboxes: dict[str, Mailbox] = {}
    for name in ("here", "there"):
        mailboxes[name] = Mailbox(name, "127.0.0.1", key, lambda to: mailboxes[to].contact)
    limits = Limits((Shard(0, 0, 100_000),), 100_000)
    try:
        for number in range(4):  # only the first fits into the memory that they share
            mailboxes["here"].send("there", Packet(torch.full((100_000,), float(number))))
        for number in range(4):
            _, frames = arrived(mailboxes["there"])
            assert tensor_of(unpack(frames, limits)).eq(number).all()
    finally:
        for mailbox in mailboxes.values():
            mailbox.close(now=True)


class Cable:
    """Carries what two sockets say to each other, until it is pulled: then nothing is said, and nothing is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._pulled = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        here, _ = self._listening.accept()
        there = socket.create_connection(("127.0.0.1", self._port))
        self._ends = [here, there]
        while not self._pulled.is_set():
            for end in select.select(self._ends, [], [], 0.01)[0]:
                (there if end is here else here).sendall(end.recv(65536))

    def pull(self) -> None:
        self._pulled.set()
        self._thread.join()

    def close(self) -> None:
        for end in (self._listening, *self._ends):
            end.close()


def lost(mailbox: Mailbox) -> list[str]:
    """Who is lost, as soon as anybody is."""
    deadline = time.monotonic() + 60
    while not (names := mailbox.lost()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return names


def test_a_line_that_ends_is_noticed_where_it_is_watched():
    key = RunKey.new()
    opened: dict[str, Mailbox] = {}
    for name in ("here", "there", "deaf"):
        opened[name] = Mailbox(
            name, "127.0.0.1", key, lambda to: opened[to].contact, silence_s=None if name == "deaf" else 60.0
        )
    for name in ("here", "deaf"):
        opened[name].connect("there")
    assert opened["here"].lost() == []
    opened.pop("there").close()
    assert lost(opened["here"]) == ["there"]
    assert opened["deaf"].lost() == []
    opened["here"].drop("there")
    assert not opened["here"].knows("there")
    for mailbox in opened.values():
        mailbox.close(now=True)


def test_a_node_that_does_not_answer_is_lost_though_nothing_was_closed():
    key = RunKey.new()
    there = Mailbox("there", "127.0.0.1", key, lambda to: "", silence_s=1.0)
    cable = Cable(int(there.contact.partition(" ")[0].rpartition(":")[2]))
    here = Mailbox("here", "127.0.0.1", key, lambda to: f"tcp://127.0.0.1:{cable.port}", silence_s=1.0)
    here.send("there", Packet(samples=1))
    assert arrived(there)[0] == "here"
    cable.pull()
    assert lost(here) == ["there"]
    for mailbox in (here, there):
        mailbox.close(now=True)
    cable.close()


def test_nobody_waits_for_a_node_that_has_died_and_that_it_never_answers_is_noticed():
    with socket.socket() as probe:  # a port at which nobody listens any more
        probe.bind(("127.0.0.1", 0))
        contact = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    here = Mailbox("here", "127.0.0.1", RunKey.new(), lambda to: contact, timeout_s=600, silence_s=0.5)
    here.waits = False
    here.send("there", Packet(samples=1))  # at once, not after 600 s
    assert not here.is_up("there")
    assert here.is_refused("there")
    assert lost(here) == ["there"]
    assert here.lost() == []  # it is said once
    here.close(now=True)


def test_a_line_that_nobody_waited_for_brings_what_was_sent(mailboxes):
    key = RunKey.new()
    here, there = mailboxes.open("here", key), mailboxes.open("there", key)
    here.waits = False
    here.send("there", Packet(samples=7))
    assert arrived(there)[0] == "here"
    assert not here.is_refused("there")


def _memory_open() -> int:
    """How many files of this process are memory that is on its way."""
    gc.collect()  # what earlier tests have left
    entries = Path("/proc/self/fd").iterdir()
    return sum(entry.is_symlink() and os.readlink(entry).startswith("/memfd:ownpace ") for entry in entries)  # noqa: PTH115


@pytest.fixture
def two(mailboxes):
    key = RunKey.new()
    there, here = mailboxes.open("there", key), mailboxes.open("here", key)
    if not here.shares_memory("there"):
        pytest.skip("this system has no such memory")
    return there, here


def test_a_state_is_given_in_memory_which_is_let_go_of_as_soon_as_it_is_taken(two):
    there, here = two
    before = _memory_open()
    for number in range(3):
        give(here, "there", {"values": torch.full((100_000,), float(number))}, 1, 100)
    assert _memory_open() == before + 3
    kept = []
    for number in range(3):
        control = unpack(arrived(there)[1], Limits(SHARDS, 100)).control
        assert isinstance(control, StateInMemory)
        kept.append(from_memory(control, "here", copied=True))  # else it stays open, here
        assert here.receive(0) is None
        assert _memory_open() == before + 2 - number
    assert [state["values"][999] for state in kept] == [0.0, 1.0, 2.0]  # type: ignore[index]


def test_what_is_given_to_a_node_that_is_gone_is_let_go_of(two):
    _, here = two
    before = _memory_open()
    give(here, "there", {"values": torch.ones(100_000)}, 1, 100)
    here.drop("there")
    assert _memory_open() == before


def test_where_there_is_no_memory_a_state_goes_through_a_socket(two):
    there, here = two
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (999, hard))
    try:
        opened = _memory_open()
        give(here, "there", {"values": torch.ones(100_000)}, 1, 60_000)
        assert _memory_open() == opened
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    kinds = [type(unpack(arrived(there)[1], Limits(SHARDS, 60_000)).control) for _ in range(3)]
    assert kinds == [StateOutline, StateTensor, StateTensor]
