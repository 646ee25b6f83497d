"""Messages on the wire and the post that carries them: what is sent comes, and nothing else does."""

from __future__ import annotations

import ast
import math
import os
import threading
import time
from pathlib import Path

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

import ownpace.engines.process
from ownpace.core.contract.errors import InputError, MachineDied
from ownpace.core.contract.values import Gradient, Parameters, Shard
from ownpace.engines.process.talk import shared_memory, wire
from ownpace.engines.process.talk.mailbox import Post, RunKey
from ownpace.engines.process.talk.wire import Limits, Packet, WireError, pack, unpack

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
SHARDS = (Shard(0, 0, 5), Shard(1, 5, 12), Shard(2, 12, 12))
LIMITS = Limits(SHARDS, 12)
PLACES = {name: place for place, name in enumerate(
    ("magic", "kind", "dtype", "stop", "shard", "known", "number", "numel", "loss", "seconds", "sent_s", "versions",
     "notes", "rates"))}  # fmt: skip

whole = st.integers(0, 2**62)
real = st.floats(allow_nan=False, width=64)
dtypes = st.sampled_from(DTYPES)


def values(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers that differ, and that every type can hold."""
    return (torch.arange(numel) % 97 - 48).to(dtype)


def sent(packet: Packet) -> list[zmq.Frame]:
    return [zmq.Frame(bytes(frame)) for frame in pack(packet)]


def there(packet: Packet, limits: Limits = LIMITS) -> Packet:
    return unpack(sent(packet), limits)


def tensor_of(packet: Packet) -> torch.Tensor:
    assert isinstance(packet.body, torch.Tensor)
    return packet.body


# ---- what is sent comes ----


@given(
    dtypes,
    st.sampled_from([12, 5, 7, 0]),
    st.lists(whole, max_size=4),
    st.none() | st.lists(real, min_size=1, max_size=40),
    st.lists(real, max_size=4),
    whole,
    real,
    real,
)
def test_gradients(dtype, numel, versions, notes, rates, samples, loss, seconds):
    noted = None if notes is None else torch.tensor(notes, dtype=torch.float64)
    gradient = Gradient(values(numel, dtype), samples, tuple(versions), loss, seconds, noted)
    came = there(Packet(gradient, 7, True, 1.25, tuple(rates)))
    assert (came.samples, came.stop, came.sent_s, came.rates, came.control) == (7, True, 1.25, tuple(rates), None)
    body = came.body
    assert isinstance(body, Gradient)
    assert (body.samples, body.versions, body.loss, body.seconds) == (samples, tuple(versions), loss, seconds)
    assert body.total.dtype == dtype
    assert torch.equal(body.total, gradient.total)
    assert (body.notes is None) == (notes is None)
    assert body.notes is None or body.notes.tolist() == notes


def test_the_loss_of_a_gradient_may_be_missing_and_may_be_a_tensor():
    assert math.isnan(there(Packet(Gradient(values(12, torch.float32), 3, (0,)))).body.loss)
    assert there(Packet(Gradient(values(12, torch.float32), 3, (0,), torch.tensor(0.5)))).body.loss == 0.5


@given(dtypes, st.sampled_from(SHARDS), whole, st.lists(real, max_size=4), real)
def test_parameters(dtype, shard, version, rates, sent_s):
    parameters = Parameters(values(shard.stop - shard.start, dtype), version, shard)
    came = there(Packet(parameters, sent_s=sent_s, rates=tuple(rates)))
    assert (came.samples, came.stop, came.sent_s, came.rates) == (0, False, sent_s, tuple(rates))
    body = came.body
    assert isinstance(body, Parameters)
    assert (body.version, body.shard, body.values.dtype) == (version, shard, dtype)
    assert torch.equal(body.values, parameters.values)


@given(dtypes, st.integers(0, 12))
def test_tensors(dtype, numel):
    body = there(Packet(values(numel, dtype))).body
    assert isinstance(body, torch.Tensor)
    assert body.dtype == dtype
    assert torch.equal(body, values(numel, dtype))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | real.filter(math.isfinite) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.none() | st.integers(0, 12), dtypes)
def test_words_about_the_run_with_a_tensor_or_without(control, numel, dtype):
    body = None if numel is None else values(numel, dtype)
    came = there(Packet(body, control=control))
    assert came.control == control
    assert (came.body is None) == (body is None)
    assert body is None or torch.equal(tensor_of(came), body)


def test_a_message_may_be_empty():
    assert there(Packet()) == Packet()
    assert there(Packet(samples=2**62, stop=True, sent_s=-1.0, rates=(0.1,))) == Packet(None, 2**62, True, -1.0, (0.1,))


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_large_tensors_go_in_pieces_and_are_whole_again(extra):
    tensor = torch.randint(-(2**62), 2**62, (3 * wire.PIECE // 8 + extra,))
    frames = sent(Packet(tensor))
    assert max(len(frame.buffer) for frame in frames) == wire.PIECE
    assert len(frames) == 2 + (4 if extra > 0 else 3)
    assert torch.equal(tensor_of(unpack(frames, Limits(SHARDS, tensor.numel()))), tensor)


def test_what_came_is_the_receivers_own():
    tensor = values(12, torch.float32)
    frames = [zmq.Frame(bytes(frame)) for frame in pack(Packet(tensor))]
    first, second = tensor_of(unpack(frames, LIMITS)), tensor_of(unpack(frames, LIMITS))
    first.zero_()
    assert torch.equal(second, tensor)


# ---- nothing else does ----


def forged(packet: Packet, **changes: object) -> list[zmq.Frame]:
    """A message whose header says something else."""
    frames = [bytes(frame) for frame in pack(packet)]
    fields = list(wire._HEADER.unpack(frames[0]))
    for name, value in changes.items():
        fields[PLACES[name]] = value
    return [zmq.Frame(frame) for frame in (wire._HEADER.pack(*fields), *frames[1:])]


GRADIENT = Packet(Gradient(values(12, torch.float32), 3, (4, 5), 0.5, 0.25, torch.ones(2)), rates=(0.1,))
PARAMETERS = Packet(Parameters(values(5, torch.float32), 9, SHARDS[0]))
TENSOR = Packet(values(6, torch.float32))
CONTROL = Packet(values(6, torch.float32), control={"what": "report"})
HUGE = 2**40


def test_forging_nothing_changes_nothing():
    assert unpack(forged(GRADIENT), LIMITS).body.versions == (4, 5)
    assert unpack(forged(GRADIENT, number=8), LIMITS).body.samples == 8
    assert unpack(forged(PARAMETERS, number=8), LIMITS).body.version == 8


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "does not begin with our header"),
        (sent(TENSOR)[:1], "does not begin with our header"),
        ([zmq.Frame(bytes(sent(TENSOR)[0].buffer)[:-1]), *sent(TENSOR)[1:]], "does not begin with our header"),
        ([zmq.Frame(bytes(sent(TENSOR)[0].buffer) + b"\0"), *sent(TENSOR)[1:]], "does not begin with our header"),
        (forged(TENSOR, magic=b"OWN0"), "not ours, or of another version"),
        (forged(TENSOR, kind=5), "not ours, or of another version"),
        (forged(TENSOR, dtype=len(DTYPES)), "not ours, or of another version"),
        (forged(TENSOR, numel=7), "announces 28 bytes of a tensor, but brings 24"),
        (forged(TENSOR, numel=5), "announces 20 bytes of a tensor, but brings 24"),
        (forged(TENSOR, dtype=1), "announces 48 bytes of a tensor, but brings 24"),
        (forged(TENSOR, numel=-1), "announces no tensor"),
        (forged(TENSOR, numel=-2), "announces -2 values"),
        (forged(TENSOR, numel=HUGE), f"announces {HUGE} values"),
        (forged(CONTROL, numel=HUGE), f"announces {HUGE} values"),
        (sent(Packet(values(13, torch.float32))), "announces 13 values"),
        (sent(TENSOR)[:2], "announces 24 bytes of a tensor, but brings 0"),
        ([*sent(TENSOR), zmq.Frame(b"more")], "announces 24 bytes of a tensor, but brings 28"),
        (forged(GRADIENT, versions=2**30), "numbers"),
        (forged(GRADIENT, notes=2**31 - 1), "numbers"),
        (forged(GRADIENT, rates=-1), "numbers"),
        (forged(GRADIENT, versions=3), "brings 40 bytes of them"),
        (forged(GRADIENT, rates=0), "brings 40 bytes of them"),
        (sent(Packet(Gradient(values(6, torch.float32), 3, (4,)))), "neither the model's size nor a shard's"),
        (forged(Packet(), kind=1), "neither the model's size nor a shard's"),
        (forged(PARAMETERS, shard=1), "5 values came for a shard of 7"),
        (forged(PARAMETERS, shard=3), "parameters of shard 3 came; there are 3"),
        (forged(PARAMETERS, shard=-1), "parameters of shard -1 came"),
        (forged(Packet(), kind=2, shard=0), "parameters of shard 0 came"),
        (forged(TENSOR, kind=4), "not a JSON object"),
        *(
            ([sent(CONTROL)[0], zmq.Frame(text), *sent(CONTROL)[2:]], "not a JSON object")
            for text in (b"", b"{", b"[1]", b"7", b"\xff\xfe\xfd", b'{"what": "re', b"[" * 200_000)
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_together_is_refused(frames, words):
    with pytest.raises(WireError) as refused:
        unpack(frames, LIMITS)
    assert words in str(refused.value)


def test_room_is_made_only_for_what_has_come():
    trusting = Limits(SHARDS, 2**60)  # even who would take that much
    begun = time.perf_counter()
    with pytest.raises(WireError, match="but brings 24"):
        unpack(forged(TENSOR, numel=HUGE), trusting)
    assert time.perf_counter() - begun < 0.1


@given(
    st.sampled_from([GRADIENT, PARAMETERS, TENSOR, CONTROL, Packet()]),
    st.integers(0, 5),
    st.integers(0, 200),
    st.sampled_from(["flip", "cut", "grow", "drop", "twice"]),
    st.integers(1, 255),
)
def test_damage_is_noticed_or_harmless(packet, frame, place, how, bits):
    frames = [bytes(frame) for frame in pack(packet)]
    frame %= len(frames)
    content = frames[frame]
    if how == "flip" and content:
        place %= len(content)
        frames[frame] = content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]
    elif how == "cut":
        frames[frame] = content[: place % (len(content) + 1)]
    elif how == "grow":
        frames[frame] = content + bytes(bits)
    elif how == "drop":
        del frames[frame]
    elif how == "twice":
        frames.insert(frame, content)
    try:
        came = unpack([zmq.Frame(content) for content in frames], LIMITS)
    except WireError:
        return
    assert isinstance(came, Packet)


# ---- the post ----


class Posts:
    """Some posts of one process, which find each other."""

    def __init__(self) -> None:
        self._posts: dict[str, Post] = {}

    def open(self, name: str, key: RunKey, timeout_s: float = 5) -> Post:
        self._posts[name] = Post(name, "127.0.0.1", key, lambda to: self._posts[to].endpoint, timeout_s=timeout_s)
        return self._posts[name]

    def close(self) -> None:
        for post in self._posts.values():
            post.close(now=True)


@pytest.fixture
def posts():
    opened = Posts()
    yield opened
    opened.close()


def test_letters_come_in_order_and_whole(posts):
    key = RunKey.new()
    there, here = posts.open("there", key), posts.open("here", key)
    number, large = 2000, torch.randn(5 << 20)  # 20 MiB
    limits = Limits(SHARDS, large.numel())

    def write() -> None:
        for count in range(number):
            there.send("here", Packet(samples=count, control={"what": "count"}))
        there.send("here", Packet(large))
        there.send("here", Packet(stop=True))

    writer = threading.Thread(target=write)
    writer.start()
    came: list[Packet] = []
    while not came or not came[-1].stop:
        letter = here.receive(10)
        assert letter is not None
        assert letter[0] == "there"
        came.append(unpack(letter[1], limits))
    writer.join()
    assert [packet.samples for packet in came[:number]] == list(range(number))
    assert torch.equal(tensor_of(came[number]), large)
    assert len(came) == number + 2
    assert not here.waiting
    here.send("there", Packet(samples=1))
    name, frames = there.receive(10)
    assert (name, unpack(frames, limits).samples) == ("here", 1)


def test_nothing_comes_where_nothing_was_sent(posts):
    post = posts.open("here", RunKey.new())
    assert post.receive(0.01) is None
    assert not post.waiting


def test_another_key_is_refused_at_once_and_can_be_closed(posts):
    here, stranger = posts.open("here", RunKey("ours")), posts.open("stranger", RunKey("theirs"), timeout_s=20)
    begun = time.monotonic()
    for _ in range(2):  # a second attempt finds nothing half open
        with pytest.raises(InputError, match=r"here at tcp://127\.0\.0\.1:.* and stranger have different run keys"):
            stranger.send("here", Packet())
    assert time.monotonic() - begun < 5
    assert here.receive(0.2) is None
    begun = time.monotonic()
    posts.close()
    assert time.monotonic() - begun < 5


def test_who_does_not_answer_is_named(posts):
    key = RunKey("ours")
    post = Post("here", "127.0.0.1", key, lambda to: "tcp://127.0.0.1:9", timeout_s=0.5)
    try:
        with pytest.raises(MachineDied, match=r"here cannot reach gone at tcp://127.0.0.1:9 within 0.5 s"):
            post.send("gone", Packet())
    finally:
        post.close(now=True)


@pytest.mark.parametrize("knows", ["nothing", "the server's key"])
def test_strangers_get_nothing_through(posts, knows):
    key = RunKey("ours")
    here, friend = posts.open("here", key), posts.open("friend", key)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.routing_id = b"friend"
        if knows == "the server's key":
            stranger.curve_serverkey = key.server_public
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.connect(here.endpoint)
        stranger.send_multipart([b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))])
        assert here.receive(1) is None
    friend.send("here", Packet())  # the box is open, for who may write
    assert here.receive(5)[0] == "friend"


def test_who_knows_the_key_needs_nothing_else(posts):
    """What the strangers above lack is the key alone."""
    key = RunKey("ours")
    here = posts.open("here", RunKey("ours"))
    with zmq.Context() as context, context.socket(zmq.DEALER) as friend:
        friend.linger = 0
        friend.routing_id = b"friend"
        friend.curve_serverkey = key.server_public
        friend.curve_publickey, friend.curve_secretkey = key.client_public, key.client_secret
        friend.connect(here.endpoint)
        friend.send_multipart([b"W", *(bytes(frame) for frame in pack(Packet(stop=True)))])
        assert here.receive(5)[0] == "friend"


def test_an_address_of_another_machine_cannot_be_listened_on():
    with pytest.raises(InputError, match=r"here cannot listen on 192\.0\.2\.1"):
        Post("here", "192.0.2.1", RunKey.new(), lambda to: "")


SOURCES = sorted(Path(ownpace.engines.process.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_is_unpickled(path):
    """But by multiprocessing, over a pipe to the launcher's own children."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if path.stem != "launch":  # which says what cannot be handed to a child
        assert not imported & {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    assert not used & {"recv_pyobj", "send_pyobj", "Unpickler", "broadcast_object_list", "all_gather_object"}
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"load", "loads"}
        and isinstance(node.value, ast.Name)
        and node.value.id in {"torch", "pickle"}
    ]


# ---- memory that two processes share ----


def test_large_tensors_lie_in_shared_memory_and_small_ones_do_not(monkeypatch):
    """Between posts that know each other to be on one host; every value comes through, again and again."""
    key = RunKey.new()
    posts: dict[str, Post] = {}
    for name in ("here", "there"):
        posts[name] = Post(name, "127.0.0.1", key, lambda to: posts[to].card)
    laid = []
    lay_down = Post._lay_down

    def lay_down_and_tell(*given):
        laid.append(lay_down(*given))
        return laid[-1]

    monkeypatch.setattr(Post, "_lay_down", lay_down_and_tell)
    limits = Limits((Shard(0, 0, 1_000_000),), 1_000_000)
    try:
        for number in range(1, 6):
            tensor = torch.full((200_000 * number,), float(number))  # it grows: new memory each time
            for body in (tensor, tensor[:10]):
                posts["here"].send("there", Packet(body))
                came = posts["there"].receive(5.0)
                assert came is not None
                assert came[0] == "here"
                assert torch.equal(tensor_of(unpack(came[1], limits)), body)
            posts["there"].receive(0.0)  # what was read is taken now
        assert [place is not None for place in laid] == [True, False] * 5
    finally:
        for post in posts.values():
            post.close(now=True)


def test_what_is_not_taken_yet_is_not_overwritten():
    key = RunKey.new()
    posts: dict[str, Post] = {}
    for name in ("here", "there"):
        posts[name] = Post(name, "127.0.0.1", key, lambda to: posts[to].card)
    limits = Limits((Shard(0, 0, 100_000),), 100_000)
    try:
        for number in range(4):  # only the first can lie in the memory that they share
            posts["here"].send("there", Packet(torch.full((100_000,), float(number))))
        for number in range(4):
            came = posts["there"].receive(5.0)
            assert came is not None
            assert tensor_of(unpack(came[1], limits)).eq(number).all()
    finally:
        for post in posts.values():
            post.close(now=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: b"", "none of ours"),
        (lambda place: b"X" + place[1:], "none of ours"),
        (lambda place: place[:40] + (1 << 40).to_bytes(8, "little"), "bytes lie in memory of"),
        (lambda place: place[:16] + (99_999).to_bytes(8, "little") + place[24:], "cannot be opened"),
        (lambda place: place[:8] + (2**31 - 1).to_bytes(8, "little") + place[16:], "cannot be opened"),
    ],
)
def test_a_place_that_lies_is_refused(change, message):
    outgoing, incoming = shared_memory.Outgoing(), shared_memory.Incoming()
    place = outgoing.put([memoryview(bytes(1000))])
    assert place is not None
    with pytest.raises(shared_memory.PlaceError, match=message):
        incoming.get("liar", change(place))
    assert bytes(incoming.get("friend", place).buffer) == bytes(1000)
    outgoing.close()


def test_memory_that_could_shrink_is_refused():
    file = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    place = shared_memory._PLACE.pack(b"OWNPLACE", os.getpid(), file, 1, 1, 100)
    with pytest.raises(shared_memory.PlaceError, match="could still shrink"):
        shared_memory.Incoming().get("liar", place)
    os.close(file)
