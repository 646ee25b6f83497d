"""How messages look on the wire: a small fixed header, a few numbers, raw tensor bytes. Nothing is ever unpickled.

    frame 0    header: what it is, what its sender knows of the run, how much follows
    frame 1    numbers: versions, optimizer settings and notes, then the names of the notes; or JSON, in messages about
               the run itself
    frame 2…   the tensor's bytes, in pieces of at most a mebibyte

Small pieces let ZeroMQ encrypt one while the next is decrypted on the other side: 11 M float32 there and back take
62 ms instead of 235 ms in one piece. A receiver knows how large a tensor may be, and checks what the header
announces against that and against what came, before it allocates anything.

What goes layer by layer is a message for each bucket of layers. What that of the lowest layers says holds for all; of
the others, the values count alone.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import NO_NOTES, Body, Gradient, Notes, Parameters, Shard, Sources
from ownpace.core.learning.plain_state import bytes_of
from ownpace.engines.process.talk.control import Control
from ownpace.engines.process.talk.control_record import from_record, to_record
from ownpace.engines.process.talk.wire_header import (
    CONTROL,
    DTYPES,
    GRADIENT,
    HEADER,
    MAGIC,
    NOTHING,
    PARAMETERS,
    PIECE,
    TENSOR,
    Frame,
    Limits,
    WireHeader,
    read_header,
)

_BETWEEN_NAMES = "\0"


@dataclass(slots=True)
class Packet:
    """A message as it travels: its body, and what the sender knows of the run."""

    body: Body = None
    notes: Notes = field(default_factory=lambda: NO_NOTES)
    samples: int = 0
    stop: bool = False
    sent_s: float = 0.0
    """When it was sent, in the run's time."""
    settings: tuple[float, ...] = ()
    """The numbers of the groups of the sender's optimizer as they are now, if it has one of its own."""
    generation: int = 0
    """In which generation of the run it was sent."""
    part: int = 0
    """Of what goes layer by layer: which bucket of layers this is, the lowest first."""
    num_parts: int = 1
    """And how many there are. The body has the values of this one alone."""
    start_s: float = 0.0
    """Where bandwidths are prescribed: when the sender's link is free for it, in the run's time."""
    control: Control | None = None
    """What a message about the run itself says; `body` may then be a tensor that goes with it."""


def pack(packet: Packet) -> list[bytes | memoryview]:
    """The frames of a message. Tensors on the CPU are not copied: they must not change any more."""
    body, gradient_notes = packet.body, NO_NOTES
    versions: tuple[int, ...] = ()
    sources: Sources = ()
    kind, number, shard, loss, seconds = NOTHING, 0, -1, math.nan, 0.0
    values: Tensor | None = None
    partial = isinstance(body, Gradient) and body.partial
    if isinstance(body, Gradient):
        kind, values, number, loss, seconds = GRADIENT, body.total, body.samples, float(body.loss), body.seconds
        versions, gradient_notes, sources = body.versions, body.notes, body.sources
    elif isinstance(body, Parameters):
        kind, values, number, shard = PARAMETERS, body.values, body.version, body.shard.index
    elif isinstance(body, Tensor):
        kind, values = TENSOR, body
    if packet.control is None:
        names = _BETWEEN_NAMES.join((*packet.notes, *gradient_notes)).encode()
        floats = (*packet.settings, *packet.notes.values(), *gradient_notes.values())
        integers = (*(number for source in sources for number in source), *versions)
        numbers = struct.pack(f"<{len(integers)}q{len(floats)}d", *integers, *floats) + names
    else:
        kind, names = CONTROL, b""
        numbers = json.dumps(to_record(packet.control)).encode()
    dtype, num_values = (0, -1) if values is None else (DTYPES.index(values.dtype), values.numel())
    header = HEADER.pack(
        MAGIC, kind, dtype, packet.stop, partial, shard, packet.generation, packet.samples, number, num_values, loss,
        seconds, packet.sent_s, packet.start_s, len(sources), len(versions), len(packet.settings), len(packet.notes),
        len(gradient_notes), len(names), packet.part, packet.num_parts,
    )  # fmt: skip
    return [header, numbers, *([] if values is None else _pieces(values))]


def unpack(frames: Sequence[Frame], limits: Limits) -> Packet:
    """The message that frames of ZeroMQ hold.

    Raises:
        WireError: They do not fit together, or announce more than a message can hold.
    """
    header = read_header(frames, limits)
    values = None if header.num_values < 0 else _join(frames[2:], header.num_values, DTYPES[header.dtype])
    packet = Packet(None, NO_NOTES, header.known_samples, bool(header.stop), header.sent_s, (), header.generation)
    packet.part, packet.num_parts, packet.start_s = header.part, header.num_parts, header.start_s
    if header.kind == CONTROL:
        return replace(packet, body=values, control=_read_control(frames[1]))
    sources, versions, packet.settings, packet.notes, gradient_notes = _read_numbers(header, frames[1], limits)
    if header.kind == GRADIENT:
        sizes = limits.gradient_sizes if header.num_parts == 1 else _part_sizes(header, limits, limits.own)
        if values is None or header.num_values not in sizes:
            raise WireError(f"a gradient of {header.num_values} values, neither the model's size nor a shard's")
        if len(versions) not in (1, len(limits.shards)) or min(versions) < 0:
            raise WireError(f"a gradient with the versions {versions[:8]} of {len(limits.shards)} shards")
        packet.body = Gradient(values, header.number, versions, header.loss, header.seconds, gradient_notes)
        packet.body.partial = bool(header.partial)
        packet.body.sources = sources
    elif header.kind == PARAMETERS:
        if values is None or not 0 <= header.shard < len(limits.shards):
            raise WireError(f"parameters of shard {header.shard}; there are {len(limits.shards)}")
        owner = limits.shards[header.shard]
        sizes = {owner.stop - owner.start} if header.num_parts == 1 else _part_sizes(header, limits, owner)
        if header.num_values not in sizes:
            raise WireError(f"parameters of {header.num_values} values for a shard of {owner.stop - owner.start}")
        packet.body = Parameters(values, header.number, owner)
    elif header.kind == TENSOR:
        packet.body = values
    return packet


def _part_sizes(header: WireHeader, limits: Limits, owner: Shard | None) -> set[int]:
    """How many values a bucket of this number may have."""
    parts = limits.parts.get(owner.index, ()) if owner is not None else ()
    if header.num_parts != len(parts):
        raise WireError(f"{header.num_parts} buckets of layers, where {len(parts)} are expected")
    return {parts[header.part]}


def unpack_from(sender: str, frames: Sequence[Frame], limits: Limits) -> Packet:
    """The same, of a message of this node's.

    Raises:
        WireError: It is none. The sender is to blame: nobody else can have written it.
    """
    try:
        return unpack(frames, limits)
    except WireError as error:
        raise blamed(sender, error) from None


def blamed(sender: str, error: WireError) -> WireError:
    """The same error, of a message of this node's."""
    named = WireError(f"{sender} sent what no node sends: {error}")
    named.blame = sender
    return named


def _read_numbers(
    header: WireHeader, frame: Frame, limits: Limits
) -> tuple[Sources, tuple[int, ...], tuple[float, ...], Notes, Notes]:
    """Sources, versions, settings, the message's notes, the gradient's notes."""
    came = len(frame.buffer)
    if came != 8 * header.num_numbers + header.name_bytes:
        raise WireError(f"a message announces {header.counts} numbers, but brings {came} bytes of them")
    num_floats = header.num_numbers - header.num_integers
    numbers = struct.unpack_from(f"<{header.num_integers}q{num_floats}d", frame.buffer)
    pairs, floats = numbers[: 2 * header.num_sources], numbers[header.num_integers :]
    sources = tuple(zip(pairs[::2], pairs[1::2], strict=True))
    versions = numbers[2 * header.num_sources : header.num_integers]
    if min(pairs, default=0) < 0 or max(pairs[::2], default=-1) >= limits.num_workers:
        raise WireError(f"samples of the ranks {pairs[:16:2]} are used up, {pairs[1:16:2]} of them; no node counts so")
    settings, noted = floats[: header.num_settings], floats[header.num_settings :]
    if not noted:
        return sources, versions, settings, NO_NOTES, NO_NOTES
    try:
        names = bytes(frame.buffer[8 * header.num_numbers :]).decode().split(_BETWEEN_NAMES)
    except UnicodeDecodeError:
        raise WireError("the names of a message's notes are not text") from None
    if len(names) != len(noted):
        raise WireError(f"a message brings {len(noted)} notes, but {len(names)} names for them")
    named = list(zip(names, noted, strict=True))
    return sources, versions, settings, dict(named[: header.num_notes]), dict(named[header.num_notes :])


def _read_control(frame: Frame) -> Control:
    try:
        record = json.loads(bytes(frame.buffer))
    # RecursionError: JSON that is nested more deeply than Python can follow.
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise WireError("a message about the run is not a JSON object")
    return from_record(record)


def _pieces(values: Tensor) -> list[memoryview]:
    """The bytes of a tensor, without copying them."""
    if not values.numel():
        return []
    whole = bytes_of(values).numpy().data
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def _join(frames: Sequence[Frame], num_values: int, dtype: torch.dtype) -> Tensor:
    nbytes = num_values * dtype.itemsize
    came = sum(len(frame.buffer) for frame in frames)
    if came != nbytes:
        raise WireError(f"a message announces {nbytes} bytes of a tensor, but brings {came}")
    values = torch.empty(num_values, dtype=dtype)
    if num_values:
        whole, start = values.view(torch.uint8).numpy().data, 0
        for frame in frames:
            piece = frame.buffer
            whole[start : start + len(piece)] = piece
            start += len(piece)
    return values
