"""Large vectors whose memory is used again once nobody holds them.

The system hands out large pieces of memory page by page, each filled with zeros at its first touch, and gets them back
as soon as they are freed. For a vector that is needed in every step, that takes longer than writing to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGE_BYTES = 1 << 20
"""Smaller pieces stay with the process when they are freed."""
_MOST = 4
"""How many are kept: no algorithm has more of them in use."""


class SpareMemory:
    """Vectors of one size and kind."""

    def __init__(self, size: int, like: Tensor) -> None:
        self._size = size
        self._like = like
        # On a GPU, torch keeps what is freed.
        is_worth_it = like.device.type == "cpu" and size * like.element_size() >= _LARGE_BYTES
        self._room = _MOST if is_worth_it and hasattr(torch._C, "_storage_Use_Count") else 0
        self._kept: list[Tensor] = []

    def take(self) -> Tensor:
        """A vector that nobody else holds, with anything in it."""
        for kept in self._kept:
            if _holders(kept) == 1:
                return kept[:]
        made = self._like.new_empty(self._size)
        if len(self._kept) < self._room:
            self._kept.append(made)
            return made[:]  # never itself: whoever holds it, or a part of it, must show as one holder more
        return made


def _holders(tensor: Tensor) -> int:
    """How many tensors have their numbers in the memory of this one, itself included."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # less the one just made
