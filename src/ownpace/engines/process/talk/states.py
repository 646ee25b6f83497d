"""Whole states on their way from one node to another: an outline as JSON, and tensors.

On one host, large ones are given in memory. Else they follow one after the other, in pieces: a receiver takes no tensor
larger than those of its model, so larger ones (a generator's state, say) come in several; a type that messages do not
have travels as its bytes.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.learning.plain_state import Filling, Outline, PlainState, bytes_of
from ownpace.engines.process.talk.given_memory import GivenMemory, TakenMemory
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.regrouping import StateInMemory, StateOutline, StateTensor
from ownpace.engines.process.talk.shared_memory import SMALLEST
from ownpace.engines.process.talk.wire import Packet

log = logging.getLogger(__name__)
_AS_THEY_ARE = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


def give(mailbox: Mailbox, to: str, state: PlainState, generation: int, most_values: int) -> None:
    """Send a state to a node that takes tensors of at most so many values; a large one through memory, if both can."""
    if mailbox.shares_memory(to) and _size(state) >= SMALLEST:
        try:
            control, memory = in_memory(state, generation)
        except OSError as error:
            log.info("a state goes through a socket: %s", error)
        else:
            mailbox.keep(memory, to)
            mailbox.send(to, Packet(control=control))
            return
    for packet in packets(state, generation, most_values):
        mailbox.send(to, packet)


def _size(state: PlainState) -> int:
    """The bytes of its tensors."""
    taken_out = Outline()
    taken_out.of(state)
    return sum(tensor.nbytes for tensor in taken_out.tensors.values())


def in_memory(state: PlainState, generation: int) -> tuple[StateInMemory, GivenMemory]:
    """A state as one message, and the memory that it speaks of.

    Raises:
        OSError: There is no such memory.
    """
    taken_out = Outline()
    outline = json.dumps(taken_out.of(state))
    tensors = taken_out.tensors.values()
    memory = GivenMemory(bytes_of(tensor).numpy().data for tensor in tensors)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    shapes = [list(tensor.shape) for tensor in tensors]
    names = list(taken_out.tensors)
    return StateInMemory(generation, outline, names, dtypes, shapes, os.getpid(), memory.file), memory


def from_memory(control: StateInMemory, owner: str, *, copied: bool = False) -> PlainState:
    """The state that a node gives in memory, and that stays there as long as any part of it is used, unless `copied`.

    Raises:
        SharedMemoryError: It cannot be opened, or is not what it should be.
        WireError: Its parts do not fit together.
    """
    memory, tensors = TakenMemory(owner, control.pid, control.file), []
    if not len(control.names) == len(control.dtypes) == len(control.shapes):
        raise WireError("a state whose tensors have no types or shapes")
    for name, shape in zip(control.dtypes, control.shapes, strict=True):
        dtype = _dtype(name)
        tensor = _shaped(memory.next(math.prod(shape) * dtype.itemsize), dtype, shape)
        tensors.append(tensor.clone() if copied else tensor)
    return _state(control.outline, control.names, tensors)


def packets(state: PlainState, generation: int, most_values: int) -> Iterator[Packet]:
    """The messages that carry a state to a node that takes tensors of at most this many values."""
    taken_out = Outline()
    outline = json.dumps(taken_out.of(state))
    yield Packet(control=StateOutline(generation, outline, list(taken_out.tensors)))
    for tensor in taken_out.tensors.values():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if tensor.dtype not in _AS_THEY_ARE:
            flat = bytes_of(tensor)
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        pieces = flat.split(max(1, most_values)) if len(flat) else [flat]
        for place, piece in enumerate(pieces):
            # A copy: what was handed over for sending must not change any more, and the sender goes on with its own.
            yield Packet(piece.clone(), control=StateTensor(dtype, shape, place == len(pieces) - 1))


class StateAssembly:
    """Puts a state together that comes in messages."""

    def __init__(self) -> None:
        self._outline: StateOutline | None = None
        self._tensors: list[Tensor] = []
        self._pieces: list[Tensor] = []

    def begin(self, outline: StateOutline) -> PlainState | None:
        """Take an outline; returns the state, if it has no tensors."""
        self._outline, self._tensors, self._pieces = outline, [], []
        return self._whole()

    def take(self, control: StateTensor, body: object) -> PlainState | None:
        """Take a piece of a tensor; returns the state when this was the last.

        Raises:
            WireError: It is no piece of a state.
        """
        if self._outline is None or not isinstance(body, Tensor) or len(self._tensors) >= len(self._outline.names):
            raise WireError("a piece of a state that was not announced")
        # Each piece says how large the whole is, so that no more is kept than that.
        if sum(piece.nbytes for piece in (*self._pieces, body)) > _nbytes(control):
            raise WireError(f"more pieces of a tensor than its shape {control.shape[:8]} has room for")
        self._pieces.append(body)
        if control.is_last:
            whole = torch.cat(self._pieces)
            self._tensors.append(_shaped(whole, _dtype(control.dtype), control.shape))
            self._pieces = []
        return self._whole()

    def _whole(self) -> PlainState | None:
        outline = self._outline
        if outline is None or len(self._tensors) < len(outline.names):
            return None
        self._outline = None
        return _state(outline.outline, outline.names, self._tensors)


def _state(outline: str, names: Sequence[str], tensors: Sequence[Tensor]) -> PlainState:
    try:
        state = Filling(dict(zip(names, tensors, strict=True))).of(json.loads(outline))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise WireError(f"a state whose parts do not fit together: {error!s:.80}") from None
    if not isinstance(state, dict):
        raise WireError("a state that has no names")
    return cast(PlainState, state)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"a tensor of the unknown type {name[:40]!r}")
    return dtype


def _nbytes(control: StateTensor) -> int:
    return math.prod(control.shape) * _dtype(control.dtype).itemsize


def _shaped(flat: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    try:
        return flat.view(dtype).view(shape)
    except (RuntimeError, TypeError) as error:
        raise WireError(f"a tensor that is not of the shape {shape[:8]}: {error!s:.80}") from None
