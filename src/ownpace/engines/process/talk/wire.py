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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import NO_NOTES, Body, Gradient, Notes, Parameters, Shard, Sources
from ownpace.core.learning.plain_state import bytes_of
from ownpace.engines.process.talk.control import Control, from_record, to_record

PIECE = 1 << 20
# The fields of `_Header` in their order; `<` turns off alignment.
_HEADER = struct.Struct("<4sBBBBiqqqqddddiiiiiiii")
# The digit counts changes of this format.
_MAGIC = b"OWN5"
_NOTHING, _GRADIENT, _PARAMETERS, _TENSOR, _CONTROL = range(5)
# Types travel as their places in this tuple.
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_MOST_NUMBERS = 1 << 20
_BETWEEN_NAMES = "\0"


class Frame(Protocol):
    """One part of a message, as ZeroMQ hands it over."""

    @property
    def buffer(self) -> memoryview:
        """Its bytes."""


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


@dataclass(frozen=True)
class Limits:
    """What a receiver is ready to take."""

    shards: Sequence[Shard]
    """Of the servers, or the whole vector; what parameters and gradients may be of."""
    most_values: int
    """Of any tensor."""
    dtype: torch.dtype | None = None
    """Of parameters and gradients; None: of any type."""
    num_workers: int = 1 << 31
    own: Shard | None = None
    """Of a server: what gradients must be of. None: they may be of any shard, or of the whole."""
    parts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By shard: the sizes of its buckets of layers, the lowest first."""

    @property
    def gradient_sizes(self) -> set[int]:
        """How many values a gradient may have."""
        if self.own is not None:
            return {self.own.stop - self.own.start}
        return {self.most_values, *(shard.stop - shard.start for shard in self.shards)}


class _Header(NamedTuple):
    magic: bytes
    kind: int
    dtype: int
    stop: int
    partial: int
    """Whether layers of a gradient may be none."""
    shard: int
    generation: int
    known_samples: int
    number: int
    """Of samples, for a gradient; the version, for parameters."""
    num_values: int
    """Of the tensor; −1: there is none."""
    loss: float
    seconds: float
    sent_s: float
    start_s: float
    num_sources: int
    num_versions: int
    num_settings: int
    num_notes: int
    num_gradient_notes: int
    name_bytes: int
    part: int
    num_parts: int

    @property
    def num_numbers(self) -> int:
        return self.num_integers + self.num_settings + self.num_notes + self.num_gradient_notes

    @property
    def num_integers(self) -> int:
        """A source is two: a worker's rank, and its samples."""
        return 2 * self.num_sources + self.num_versions

    @property
    def counts(self) -> tuple[int, ...]:
        return (
            self.num_sources, self.num_versions, self.num_settings, self.num_notes, self.num_gradient_notes,
            self.name_bytes,
        )  # fmt: skip


def pack(packet: Packet) -> list[bytes | memoryview]:
    """The frames of a message. Tensors on the CPU are not copied: they must not change any more."""
    body, gradient_notes = packet.body, NO_NOTES
    versions: tuple[int, ...] = ()
    sources: Sources = ()
    kind, number, shard, loss, seconds = _NOTHING, 0, -1, math.nan, 0.0
    values: Tensor | None = None
    partial = isinstance(body, Gradient) and body.partial
    if isinstance(body, Gradient):
        kind, values, number, loss, seconds = _GRADIENT, body.total, body.samples, float(body.loss), body.seconds
        versions, gradient_notes, sources = body.versions, body.notes, body.sources
    elif isinstance(body, Parameters):
        kind, values, number, shard = _PARAMETERS, body.values, body.version, body.shard.index
    elif isinstance(body, Tensor):
        kind, values = _TENSOR, body
    if packet.control is None:
        names = _BETWEEN_NAMES.join((*packet.notes, *gradient_notes)).encode()
        floats = (*packet.settings, *packet.notes.values(), *gradient_notes.values())
        integers = (*(number for source in sources for number in source), *versions)
        numbers = struct.pack(f"<{len(integers)}q{len(floats)}d", *integers, *floats) + names
    else:
        kind, names = _CONTROL, b""
        numbers = json.dumps(to_record(packet.control)).encode()
    dtype, num_values = (0, -1) if values is None else (_DTYPES.index(values.dtype), values.numel())
    header = _HEADER.pack(
        _MAGIC, kind, dtype, packet.stop, partial, shard, packet.generation, packet.samples, number, num_values, loss,
        seconds, packet.sent_s, packet.start_s, len(sources), len(versions), len(packet.settings), len(packet.notes),
        len(gradient_notes), len(names), packet.part, packet.num_parts,
    )  # fmt: skip
    return [header, numbers, *([] if values is None else _pieces(values))]


def unpack(frames: Sequence[Frame], limits: Limits) -> Packet:
    """The message that frames of ZeroMQ hold.

    Raises:
        WireError: They do not fit together, or announce more than a message can hold.
    """
    header = _read_header(frames, limits)
    values = None if header.num_values < 0 else _join(frames[2:], header.num_values, _DTYPES[header.dtype])
    packet = Packet(None, NO_NOTES, header.known_samples, bool(header.stop), header.sent_s, (), header.generation)
    packet.part, packet.num_parts, packet.start_s = header.part, header.num_parts, header.start_s
    if header.kind == _CONTROL:
        return replace(packet, body=values, control=_read_control(frames[1]))
    sources, versions, packet.settings, packet.notes, gradient_notes = _read_numbers(header, frames[1], limits)
    if header.kind == _GRADIENT:
        sizes = limits.gradient_sizes if header.num_parts == 1 else _part_sizes(header, limits, limits.own)
        if values is None or header.num_values not in sizes:
            raise WireError(f"a gradient of {header.num_values} values, neither the model's size nor a shard's")
        if len(versions) not in (1, len(limits.shards)) or min(versions) < 0:
            raise WireError(f"a gradient with the versions {versions[:8]} of {len(limits.shards)} shards")
        packet.body = Gradient(values, header.number, versions, header.loss, header.seconds, gradient_notes)
        packet.body.partial = bool(header.partial)
        packet.body.sources = sources
    elif header.kind == _PARAMETERS:
        if values is None or not 0 <= header.shard < len(limits.shards):
            raise WireError(f"parameters of shard {header.shard}; there are {len(limits.shards)}")
        owner = limits.shards[header.shard]
        sizes = {owner.stop - owner.start} if header.num_parts == 1 else _part_sizes(header, limits, owner)
        if header.num_values not in sizes:
            raise WireError(f"parameters of {header.num_values} values for a shard of {owner.stop - owner.start}")
        packet.body = Parameters(values, header.number, owner)
    elif header.kind == _TENSOR:
        packet.body = values
    return packet


def _part_sizes(header: _Header, limits: Limits, owner: Shard | None) -> set[int]:
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


def _read_header(frames: Sequence[Frame], limits: Limits) -> _Header:
    if len(frames) < 2 or len(frames[0].buffer) != _HEADER.size:
        raise WireError(f"a message of {len(frames)} frames that does not begin with our header")
    header = _Header._make(_HEADER.unpack(frames[0].buffer))
    if header.magic != _MAGIC or header.kind > _CONTROL or header.dtype >= len(_DTYPES):
        raise WireError("a message that is not ours, or of another version; do all nodes run the same ownpace?")
    if (
        # Before anything is allocated: these numbers come from outside.
        min(header.counts) < 0
        or sum(header.counts) > _MOST_NUMBERS
        or not -1 <= header.num_values <= limits.most_values
    ):
        raise WireError(
            f"a message announces {header.num_values} values and {header.counts} numbers; at most "
            f"{limits.most_values} values fit here"
        )
    # Otherwise bytes that no check has counted would be taken in silently.
    if header.num_values < 0 and len(frames) > 2:
        raise WireError(f"a message announces no tensor, but brings {len(frames) - 2} pieces of one")
    # In shared memory a tensor is one piece, however large.
    most_pieces = max(1, -(-header.num_values * _DTYPES[header.dtype].itemsize // PIECE))
    if len(frames) - 2 > most_pieces:
        raise WireError(f"a message brings {len(frames) - 2} pieces of a tensor of {header.num_values} values")
    _check_numbers(header, limits)
    return header


def _check_numbers(header: _Header, limits: Limits) -> None:
    """What a node counts is never negative, and its times are finite; before the start they are −∞."""
    counts = (header.generation, header.known_samples, header.number)
    times_are_right = 0 <= header.seconds < math.inf and max(header.sent_s, header.start_s) < math.inf
    if not 0 <= header.part < header.num_parts or (
        header.num_parts > 1 and header.kind not in (_GRADIENT, _PARAMETERS)
    ):
        raise WireError(f"bucket {header.part} of {header.num_parts}; none has such a number")
    if min(counts) < 0 or max(header.stop, header.partial) > 1 or not times_are_right:
        raise WireError(
            f"a message of generation {header.generation} that knows of {header.known_samples} samples, has the number "
            f"{header.number}, took {header.seconds} s, was sent at {header.sent_s} s, and has the flags "
            f"{header.stop} and {header.partial}"
        )
    is_of_model = header.kind in (_GRADIENT, _PARAMETERS)
    if is_of_model and limits.dtype is not None and _DTYPES[header.dtype] is not limits.dtype:
        raise WireError(f"values of type {_DTYPES[header.dtype]} for a model of type {limits.dtype}")


def _read_numbers(
    header: _Header, frame: Frame, limits: Limits
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
