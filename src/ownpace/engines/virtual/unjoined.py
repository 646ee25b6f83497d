"""Gradients whose layers are not one vector yet: in a sum they need not become one each.

Joining a small net's layers costs as much as a twentieth of its gradient. What is summed right away is joined once, for
the first member; the layers of the others are added to that, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ownpace.core.learning.flat import Layout

_NONE_HERE: tuple[str, ...] = ()


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


class JoinedLater:
    """Of a gradient: it may have its layers instead of `total`, until somebody asks for that."""

    __slots__ = _NONE_HERE
    total: Tensor
    parts: Unjoined | None

    def hold(self, contents: Tensor | Unjoined) -> None:
        """Consist of this."""
        if isinstance(contents, Unjoined):
            self.parts = contents
            del self.total  # so that asking for it is noticed
        else:
            self.total, self.parts = contents, None

    if not TYPE_CHECKING:  # where types are checked, `total` is what a gradient has

        def __getattr__(self, name: str) -> Tensor:
            # Only where there is no such attribute: where `total` is there, looking for it costs nothing more.
            if name != "total":
                raise AttributeError(name)
            self.total, self.parts = self.parts.join(), None
            return self.total

    @property
    def nbytes(self) -> int:
        return self.total.nbytes if self.parts is None else self.parts.nbytes


__all__ = ["JoinedLater", "Unjoined"]
