"""Messages on the wire: what is sent comes, and nothing else does."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Gradient, Parameters, Shard
from ownpace.engines.process.talk import wire_header
from ownpace.engines.process.talk.control import Refuse, Stop
from ownpace.engines.process.talk.wire import Packet, pack, unpack, unpack_from
from ownpace.engines.process.talk.wire_header import Limits

DTYPES = list(wire_header.DTYPES)
SHARDS = (Shard(0, 0, 5), Shard(1, 5, 12), Shard(2, 12, 12))
LIMITS = Limits(SHARDS, 12, num_workers=12)

whole = st.integers(0, 2**62)
real = st.floats(allow_nan=False, width=64)
times = st.floats(-1e300, 1e300)
durations = st.floats(0, 1e300)
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


noted = st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), real, max_size=6)


@given(
    dtypes,
    st.sampled_from([12, 5, 7, 0]),
    st.lists(whole, min_size=1, max_size=1) | st.lists(whole, min_size=3, max_size=3),
    noted,
    noted,
    st.lists(real, max_size=4),
    st.integers(0, 9),
    durations,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=3).map(tuple),
)
def test_gradients(dtype, numel, versions, notes, own_notes, settings, samples, seconds, sources):
    gradient = Gradient(values(numel, dtype), samples, tuple(versions), 0.5, seconds, own_notes, sources=sources)
    came = there(Packet(gradient, notes, 7, True, 1.25, tuple(settings), 3))
    assert (came.notes, came.samples, came.stop, came.sent_s) == (notes, 7, True, 1.25)
    assert (came.settings, came.generation, came.control) == (tuple(settings), 3, None)
    body = came.body
    assert isinstance(body, Gradient)
    assert (body.samples, body.versions, body.loss, body.seconds) == (samples, tuple(versions), 0.5, seconds)
    assert body.total.dtype == dtype
    assert torch.equal(body.total, gradient.total)
    assert (body.notes, body.sources) == (own_notes, sources)


@given(noted)
def test_notes_need_no_body(notes):
    came = there(Packet(notes=notes))
    assert (came.body, came.notes) == (None, notes)


def test_the_loss_of_a_gradient_may_be_missing_and_may_be_a_tensor():
    assert math.isnan(there(Packet(Gradient(values(12, torch.float32), 3, (0,)))).body.loss)
    assert there(Packet(Gradient(values(12, torch.float32), 3, (0,), torch.tensor(0.5)))).body.loss == 0.5


@given(dtypes, st.sampled_from(SHARDS), whole, st.lists(real, max_size=4), times)
def test_parameters(dtype, shard, version, settings, sent_s):
    parameters = Parameters(values(shard.stop - shard.start, dtype), version, shard)
    came = there(Packet(parameters, sent_s=sent_s, settings=tuple(settings)))
    assert (came.samples, came.stop, came.sent_s, came.settings) == (0, False, sent_s, tuple(settings))
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


@given(st.text(), st.none() | st.integers(0, 12), dtypes)
def test_words_about_the_run_with_a_tensor_or_without(message, numel, dtype):
    body = None if numel is None else values(numel, dtype)
    came = there(Packet(body, control=Refuse(message)))
    assert came.control == Refuse(message)
    assert (came.body is None) == (body is None)
    assert body is None or torch.equal(tensor_of(came), body)


def test_a_message_may_be_empty():
    assert there(Packet()) == Packet()
    full = Packet(samples=2**62, stop=True, sent_s=-1.0, settings=(0.1,), generation=4)
    assert there(full) == full


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_large_tensors_go_in_pieces_and_are_whole_again(extra):
    tensor = torch.randint(-(2**62), 2**62, (3 * wire_header.PIECE // 8 + extra,))
    frames = sent(Packet(tensor))
    assert max(len(frame.buffer) for frame in frames) == wire_header.PIECE
    assert len(frames) == 2 + (4 if extra > 0 else 3)
    assert torch.equal(tensor_of(unpack(frames, Limits(SHARDS, tensor.numel()))), tensor)


def test_what_came_is_the_receivers_own():
    tensor = values(12, torch.float32)
    frames = [zmq.Frame(bytes(frame)) for frame in pack(Packet(tensor))]
    first, second = tensor_of(unpack(frames, LIMITS)), tensor_of(unpack(frames, LIMITS))
    first.zero_()
    assert torch.equal(second, tensor)


# ---- nothing else does ----


def forged(packet: Packet, **changes: Any) -> list[zmq.Frame]:
    """A message whose header says something else."""
    frames = [bytes(frame) for frame in pack(packet)]
    header = wire_header.WireHeader._make(wire_header.HEADER.unpack(frames[0]))._replace(**changes)
    return [zmq.Frame(frame) for frame in (wire_header.HEADER.pack(*header), *frames[1:])]


GRADIENT = Packet(
    Gradient(values(12, torch.float32), 3, (4, 5, 6), 0.5, 0.25, {"square": 1.0, "é": 2.0}),
    {"group": 3.0},
    settings=(0.1,),
)
PARAMETERS = Packet(Parameters(values(5, torch.float32), 9, SHARDS[0]))
TENSOR = Packet(values(6, torch.float32))
CONTROL = Packet(values(6, torch.float32), control=Stop())
HUGE = 2**40


def test_forging_nothing_changes_nothing():
    assert unpack(forged(GRADIENT), LIMITS).body.versions == (4, 5, 6)
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
        (forged(TENSOR, dtype=8), "not ours, or of another version"),
        (forged(TENSOR, num_values=7), "announces 28 bytes of a tensor, but brings 24"),
        (forged(TENSOR, num_values=5), "announces 20 bytes of a tensor, but brings 24"),
        (forged(TENSOR, dtype=1), "announces 48 bytes of a tensor, but brings 24"),
        (forged(TENSOR, num_values=-1), "announces no tensor"),
        (forged(TENSOR, num_values=-2), "announces -2 values"),
        (forged(TENSOR, num_values=HUGE), f"announces {HUGE} values"),
        (forged(CONTROL, num_values=HUGE), f"announces {HUGE} values"),
        (sent(Packet(values(13, torch.float32))), "announces 13 values"),
        (sent(TENSOR)[:2], "announces 24 bytes of a tensor, but brings 0"),
        ([*sent(TENSOR)[:2], zmq.Frame(bytes(28))], "announces 24 bytes of a tensor, but brings 28"),
        ([*sent(TENSOR), zmq.Frame(b"more")], "brings 2 pieces of a tensor of 6 values"),
        ([*sent(TENSOR), *1000 * [zmq.Frame(b"")]], "brings 1001 pieces of a tensor of 6 values"),
        (forged(TENSOR, generation=-1), "of generation -1"),
        (forged(TENSOR, known_samples=-1), "knows of -1 samples"),
        (forged(TENSOR, stop=2), "the flags 2 and 0"),
        (forged(TENSOR, partial=255), "the flags 0 and 255"),
        (forged(TENSOR, sent_s=math.nan), "sent at nan s"),
        (forged(TENSOR, sent_s=math.inf), "sent at inf s"),
        *((forged(GRADIENT, seconds=wrong), f"took {wrong} s") for wrong in (math.nan, math.inf, -math.inf, -0.5)),
        (forged(GRADIENT, number=-3), "has the number -3"),
        (forged(PARAMETERS, number=-3), "has the number -3"),
        (sent(Packet(Gradient(values(12, torch.float32), 3, (4, -5, 6)))), "versions (4, -5, 6) of 3 shards"),
        (sent(Packet(Gradient(values(12, torch.float32), 3, (4, 5)))), "versions (4, 5) of 3 shards"),
        *(
            (sent(Packet(Gradient(values(12, torch.float32), 3, (4,), sources=wrong))), "no node counts so")
            for wrong in (((-1, 3),), ((0, -3),), ((0, 3), (12, 1)))
        ),
        (forged(GRADIENT, num_versions=2**30), "numbers"),
        (forged(GRADIENT, num_gradient_notes=2**31 - 1), "numbers"),
        (forged(GRADIENT, num_settings=-1), "numbers"),
        (forged(GRADIENT, num_versions=4), "bytes of them"),
        (forged(GRADIENT, num_settings=0), "bytes of them"),
        (sent(Packet(Gradient(values(6, torch.float32), 3, (4,)))), "neither the model's size nor a shard's"),
        (forged(Packet(), kind=1), "neither the model's size nor a shard's"),
        (forged(PARAMETERS, shard=1), "5 values for a shard of 7"),
        (forged(PARAMETERS, shard=3), "parameters of shard 3; there are 3"),
        (forged(PARAMETERS, shard=-1), "parameters of shard -1;"),
        (forged(Packet(), kind=2, shard=0), "parameters of shard 0;"),
        (forged(TENSOR, kind=4), "not a JSON object"),
        *(
            ([sent(CONTROL)[0], zmq.Frame(text), *sent(CONTROL)[2:]], "not a JSON object")
            for text in (b"", b"{", b"[1]", b"7", b"\xff\xfe\xfd", b'{"kind": "St', b"[" * 200_000)
        ),
        ([sent(CONTROL)[0], zmq.Frame(b'{"kind": "Party"}'), *sent(CONTROL)[2:]], "unknown kind 'Party'"),
        ([sent(CONTROL)[0], zmq.Frame(b"{}"), *sent(CONTROL)[2:]], "unknown kind None"),
        (forged(GRADIENT, num_versions=0, num_settings=4), "versions () of 3 shards"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_together_is_refused(frames, words):
    with pytest.raises(WireError) as refused:
        unpack(frames, LIMITS)
    assert words in str(refused.value)


@pytest.mark.parametrize("body", [GRADIENT.body, PARAMETERS.body])
def test_values_are_of_the_models_type(body):
    assert there(Packet(body), Limits(SHARDS, 12, torch.float32)).body is not None
    with pytest.raises(WireError, match=r"values of type torch\.float32 for a model of type torch\.bfloat16"):
        there(Packet(body), Limits(SHARDS, 12, torch.bfloat16))


def test_a_server_takes_gradients_of_its_own_shard_alone():
    limits = Limits(SHARDS, 12, own=SHARDS[1])
    assert there(Packet(Gradient(values(7, torch.float32), 1, (0,))), limits).body is not None
    for numel in (5, 12):
        with pytest.raises(WireError, match=f"a gradient of {numel} values"):
            there(Packet(Gradient(values(numel, torch.float32), 1, (0,))), limits)


def test_who_sent_it_is_named():
    with pytest.raises(WireError, match=r"^worker-7 sent what no node sends: a message of 0 frames") as caught:
        unpack_from("worker-7", [], LIMITS)
    assert caught.value.blame == "worker-7"


def test_room_is_made_only_for_what_has_come():
    trusting = Limits(SHARDS, 2**60)  # even who would take that much
    begun = time.perf_counter()
    with pytest.raises(WireError, match="but brings 24"):
        unpack(forged(TENSOR, num_values=HUGE), trusting)
    assert time.perf_counter() - begun < 10  # 4 TiB cannot be had in any time


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


# ---- what goes layer by layer ----

IN_PARTS = Limits(SHARDS, 12, num_workers=12, own=SHARDS[1], parts={0: (2, 3), 1: (1, 2, 1)})


def a_part(part: int, size: int, num_parts: int = 3) -> Packet:
    return Packet(Gradient(values(size, torch.float32), 3, (4,)), part=part, num_parts=num_parts)


def test_buckets_of_layers_come_as_they_went():
    for part, size in enumerate((1, 2, 1)):
        came = there(a_part(part, size), IN_PARTS)
        assert (came.part, came.num_parts) == (part, 3)
        assert isinstance(came.body, Gradient)
        assert len(came.body.total) == size
    parameters = Parameters(values(3, torch.float32), 9, SHARDS[0])
    assert there(Packet(parameters, part=1, num_parts=2), IN_PARTS).part == 1


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (a_part(1, 1), "a gradient of 1 values"),
        (a_part(0, 1, num_parts=2), "2 buckets of layers, where 3 are expected"),
        (a_part(3, 1), "bucket 3 of 3"),
        (a_part(-1, 1), "bucket -1 of 3"),
        (Packet(Parameters(values(2, torch.float32), 9, SHARDS[0]), part=1, num_parts=2), "parameters of 2 values"),
        (Packet(Parameters(values(2, torch.float32), 9, SHARDS[2]), part=0, num_parts=2), "where 0 are expected"),
        (Packet(values(2, torch.float32), part=0, num_parts=2), "bucket 0 of 2; none has such a number"),
    ],
)
def test_buckets_that_fit_no_shard_are_refused(packet, words):
    with pytest.raises(WireError, match=words):
        there(packet, IN_PARTS)
