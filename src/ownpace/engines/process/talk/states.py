"""Whole states on their way from one node to another: an outline as JSON, then tensor after tensor, in pieces.

A receiver takes no tensor larger than those of its model, so larger ones (a generator's state, say) come in several
pieces; a type that messages do not have travels as its bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.learning.plain_state import Filling, Outline, PlainState, bytes_of
from ownpace.engines.process.talk.regrouping import StateOutline, StateTensor
from ownpace.engines.process.talk.wire import Packet

_AS_THEY_ARE = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


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
            self._tensors.append(_tensor(self._pieces, control))
            self._pieces = []
        return self._whole()

    def _whole(self) -> PlainState | None:
        outline = self._outline
        if outline is None or len(self._tensors) < len(outline.names):
            return None
        self._outline = None
        try:
            named = dict(zip(outline.names, self._tensors, strict=True))
            state = Filling(named).of(json.loads(outline.outline))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise WireError(f"a state whose parts do not fit together: {error!s:.80}") from None
        if not isinstance(state, dict):
            raise WireError("a state that has no names")
        return cast(PlainState, state)


def _dtype(control: StateTensor) -> torch.dtype:
    dtype = getattr(torch, control.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise WireError(f"a tensor of the unknown type {control.dtype[:40]!r}")
    return dtype


def _nbytes(control: StateTensor) -> int:
    return math.prod(control.shape) * _dtype(control).itemsize


def _tensor(pieces: list[Tensor], control: StateTensor) -> Tensor:
    try:
        return torch.cat(pieces).view(_dtype(control)).view(control.shape)
    except (RuntimeError, TypeError) as error:
        raise WireError(f"a tensor that is not of the shape {control.shape[:8]}: {error!s:.80}") from None
