"""How messages look on the wire: a small fixed header, a few numbers, raw tensor bytes. Nothing is ever unpickled.

    frame 0    header: what it is, who sent it, how much follows
    frame 1    numbers: versions, notes and learning rates as float64; or JSON, in messages about the run itself
    frame 2…   the tensor's bytes, in pieces of at most a mebibyte

Small pieces let ZeroMQ encrypt one while the next is decrypted on the other side: 11 M float32 there and back take
62 ms instead of 235 ms in one piece. A receiver knows how large a tensor may be, and checks what the header
announces against that and against what came, before it allocates anything.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.values import Body, Gradient, Parameters, Shard

PIECE = 1 << 20
_HEADER = struct.Struct("<4sBBBxiqqqdddiii")
_MAGIC = b"OWN1"
_NOTHING, _GRADIENT, _PARAMETERS, _TENSOR, _CONTROL = range(5)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
_MOST_NUMBERS = 1 << 20


class WireError(OwnpaceError):
    """What came over the wire is not a message of ours."""

    exit_code = 4


@dataclass(slots=True)
class Packet:
    """A message as it travels: its body, and what the sender knows of the run."""

    body: Body = None
    samples: int = 0
    stop: bool = False
    sent_s: float = 0.0
    """When it was sent, in the run's time."""
    rates: tuple[float, ...] = ()
    """The learning rates that the sender's optimizer has now, if it has one of its own."""
    control: Mapping[str, Any] | None = None
    """What a message about the run itself says; `body` may then be a tensor that goes with it."""


@dataclass(frozen=True)
class Limits:
    """What a receiver is ready to take."""

    shards: Sequence[Shard]
    """Of the servers, or the whole vector; what parameters and gradients may be of."""
    most_values: int
    """Of any tensor."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def pack(packet: Packet) -> list[bytes | memoryview]:
    """The frames of a message. Tensors on the CPU are not copied: they must not change any more."""
    body, kind, samples, loss, seconds, version, shard = packet.body, _NOTHING, 0, math.nan, 0.0, 0, -1
    versions: tuple[int, ...] = ()
    notes: list[float] = []
    values: Tensor | None = None
    if isinstance(body, Gradient):
        kind, values, samples, loss, seconds = _GRADIENT, body.total, body.samples, float(body.loss), body.seconds
        versions = body.versions
        notes = [] if body.notes is None else body.notes.double().tolist()
    elif isinstance(body, Parameters):
        kind, values, version, shard = _PARAMETERS, body.values, body.version, body.shard.index
    elif isinstance(body, Tensor):
        kind, values = _TENSOR, body
    if packet.control is not None:
        kind = _CONTROL
        numbers = json.dumps(packet.control).encode()
    else:
        numbers = struct.pack(f"<{len(versions)}q{len(notes)}d{len(packet.rates)}d", *versions, *notes, *packet.rates)
    dtype, numel = (0, -1) if values is None else (_DTYPES.index(values.dtype), values.numel())
    if kind == _CONTROL:
        version = len(numbers)
    header = _HEADER.pack(
        _MAGIC, kind, dtype, packet.stop, shard, packet.samples, samples or version, numel, loss, seconds,
        packet.sent_s, len(versions), len(notes), len(packet.rates),
    )  # fmt: skip
    return [header, numbers, *([] if values is None else _pieces(values))]


def unpack(frames: Sequence[Any], limits: Limits) -> Packet:
    """The message that frames of ZeroMQ hold.

    Raises:
        WireError: They do not fit together, or hold more than can be meant.
    """
    if len(frames) < 2 or len(frames[0].buffer) != _HEADER.size:
        raise WireError(f"a message of {len(frames)} frames came that does not begin with our header")
    magic, kind, dtype, stop, shard, known, number, numel, loss, seconds, sent_s, *counts = _HEADER.unpack(
        frames[0].buffer
    )
    if magic != _MAGIC or kind > _CONTROL or dtype >= len(_DTYPES):
        raise WireError("a message came that is not ours, or of another version; are all nodes of the same ownpace?")
    num_versions, num_notes, _ = counts
    if min(counts) < 0 or sum(counts) > _MOST_NUMBERS or not -1 <= numel <= limits.most_values:
        raise WireError(
            f"a message announces {numel} values and {counts} numbers; at most {limits.most_values} fit here"
        )
    if numel < 0 and len(frames) > 2:
        raise WireError(f"a message announces no tensor, but brings {len(frames) - 2} pieces of one")
    values = None if numel < 0 else _join(frames[2:], numel, _DTYPES[dtype], limits.device)
    if kind == _CONTROL:
        try:
            control = json.loads(bytes(frames[1].buffer))
        except (ValueError, RecursionError):
            control = None
        if not isinstance(control, dict):
            raise WireError("a message about the run is not a JSON object")
        return Packet(values, known, bool(stop), sent_s, (), control)
    if len(frames[1].buffer) != 8 * sum(counts):
        raise WireError(f"a message announces {counts} numbers, but brings {len(frames[1].buffer)} bytes of them")
    numbers = struct.unpack(f"<{num_versions}q{sum(counts) - num_versions}d", frames[1].buffer)
    versions, notes = numbers[:num_versions], numbers[num_versions : num_versions + num_notes]
    body: Body = None
    if kind == _GRADIENT:
        if values is None or numel not in {limits.most_values, *(s.stop - s.start for s in limits.shards)}:
            raise WireError(f"a gradient of {numel} values came, which is neither the model's size nor a shard's")
        noted = torch.tensor(notes, dtype=torch.float64) if num_notes else None
        body = Gradient(values, number, cast("tuple[int, ...]", versions), loss, seconds, noted)
    elif kind == _PARAMETERS:
        if values is None or not 0 <= shard < len(limits.shards):
            raise WireError(f"parameters of shard {shard} came; there are {len(limits.shards)}")
        owner = limits.shards[shard]
        if numel != owner.stop - owner.start:
            raise WireError(f"parameters of {numel} values came for a shard of {owner.stop - owner.start}")
        body = Parameters(values, number, owner)
    elif kind == _TENSOR:
        body = values
    return Packet(body, known, bool(stop), sent_s, tuple(numbers[num_versions + num_notes :]))


def _pieces(values: Tensor) -> list[memoryview]:
    """The bytes of a tensor, without copying them."""
    if not values.numel():
        return []
    flat = values.detach().cpu().contiguous().view(-1)
    whole = flat.view(torch.uint8).numpy().data
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def _join(frames: Sequence[Any], numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    nbytes = numel * dtype.itemsize
    came = sum(len(frame.buffer) for frame in frames)
    if came != nbytes:
        raise WireError(f"a message announces {nbytes} bytes of a tensor, but brings {came}")
    values = torch.empty(numel, dtype=dtype)
    if numel:
        whole, start = values.view(torch.uint8).numpy().data, 0
        for frame in frames:
            piece = frame.buffer
            whole[start : start + len(piece)] = piece
            start += len(piece)
    return values.to(device)
