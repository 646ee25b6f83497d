"""Gradients whose layers are not one vector yet: in a sum they need not become one each.

Joining a small net's layers costs as much as a twentieth of its gradient. What is summed right away is joined once, for
the first member; the layers of the others are added to that, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.learning.flat import Layout


class Unjoined:
    """A gradient, layer by layer."""

    __slots__ = ("_layout", "_parts")

    def __init__(self, layout: Layout, parts: list[Tensor]) -> None:
        self._layout = layout
        self._parts = parts

    @property
    def nbytes(self) -> int:
        """Of all layers."""
        return self._layout.size * self._parts[0].element_size()

    def join(self) -> Tensor:
        """As one vector, which is the caller's."""
        return self._layout.join(self._parts)

    def plus(self, others: Sequence[Unjoined]) -> Tensor:
        """The sum with others, one after the other, as one vector."""
        total = self.join()
        views = self._layout.views(total)
        for other in others:
            torch._foreach_add_(views, other._parts)
        return total


__all__ = ["Unjoined"]
