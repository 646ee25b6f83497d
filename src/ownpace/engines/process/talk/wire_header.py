"""The header of a message on the wire, and what a receiver checks in it before it allocates anything.

These numbers come from outside: what they announce must fit what came, and what this receiver is ready to take.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Shard

PIECE = 1 << 20
# The fields of `WireHeader` in their order; `<` turns off alignment.
HEADER = struct.Struct("<4sBBBBiqqqqddddiiiiiiii")
# The digit counts changes of this format.
MAGIC = b"OWN5"
NOTHING, GRADIENT, PARAMETERS, TENSOR, CONTROL = range(5)
# Types travel as their places in this tuple.
DTYPES = (
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


class Frame(Protocol):
    """One part of a message, as ZeroMQ hands it over."""

    @property
    def buffer(self) -> memoryview:
        """Its bytes."""


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


class WireHeader(NamedTuple):
    """The first frame of a message."""

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
        """All that follow in the second frame."""
        return self.num_integers + self.num_settings + self.num_notes + self.num_gradient_notes

    @property
    def num_integers(self) -> int:
        """A source is two: a worker's rank, and its samples."""
        return 2 * self.num_sources + self.num_versions

    @property
    def counts(self) -> tuple[int, ...]:
        """What it announces besides a tensor."""
        return (
            self.num_sources, self.num_versions, self.num_settings, self.num_notes, self.num_gradient_notes,
            self.name_bytes,
        )  # fmt: skip


def read_header(frames: Sequence[Frame], limits: Limits) -> WireHeader:
    """The header of a message that has come.

    Raises:
        WireError: It is none, or announces what does not fit what came, or this receiver.
    """
    if len(frames) < 2 or len(frames[0].buffer) != HEADER.size:
        raise WireError(f"a message of {len(frames)} frames that does not begin with our header")
    header = WireHeader._make(HEADER.unpack(frames[0].buffer))
    if header.magic != MAGIC or header.kind > CONTROL or header.dtype >= len(DTYPES):
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
    most_pieces = max(1, -(-header.num_values * DTYPES[header.dtype].itemsize // PIECE))
    if len(frames) - 2 > most_pieces:
        raise WireError(f"a message brings {len(frames) - 2} pieces of a tensor of {header.num_values} values")
    _check_numbers(header, limits)
    return header


def _check_numbers(header: WireHeader, limits: Limits) -> None:
    """What a node counts is never negative, and its times are finite; before the start they are −∞."""
    counts = (header.generation, header.known_samples, header.number)
    times_are_right = 0 <= header.seconds < math.inf and max(header.sent_s, header.start_s) < math.inf
    if not 0 <= header.part < header.num_parts or (header.num_parts > 1 and header.kind not in (GRADIENT, PARAMETERS)):
        raise WireError(f"bucket {header.part} of {header.num_parts}; none has such a number")
    if min(counts) < 0 or max(header.stop, header.partial) > 1 or not times_are_right:
        raise WireError(
            f"a message of generation {header.generation} that knows of {header.known_samples} samples, has the number "
            f"{header.number}, took {header.seconds} s, was sent at {header.sent_s} s, and has the flags "
            f"{header.stop} and {header.partial}"
        )
    is_of_model = header.kind in (GRADIENT, PARAMETERS)
    if is_of_model and limits.dtype is not None and DTYPES[header.dtype] is not limits.dtype:
        raise WireError(f"values of type {DTYPES[header.dtype]} for a model of type {limits.dtype}")
