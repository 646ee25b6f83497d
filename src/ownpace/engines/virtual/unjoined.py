"""Gradients whose layers are not one vector yet: in a sum they need not become one each.

Joining a small net's layers costs as much as a twentieth of its gradient. What is summed right away is joined once, for
the first member; the layers of the others are added to that, with the same bits. And it is summed as it is handed over,
where it can be: each gradient is in the processor's cache then, and the next one is computed in its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MemberDescriptorType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ownpace.core.contract.values import Gradient
from ownpace.core.learning.layout import Layout

_NONE_HERE: tuple[str, ...] = ()
_TOTAL: MemberDescriptorType = vars(Gradient)["total"]
"""The slot of a gradient's total."""


class Unjoined:
    """A gradient, layer by layer."""

    __slots__ = ("_layout", "_parts")

    def __init__(self, layout: Layout, parts: list[Tensor]) -> None:
        self._layout = layout
        self._parts = parts

    def join(self) -> Tensor:
        """As one vector, which is the caller's."""
        if not self._parts:
            raise RuntimeError("a gradient was handed to a sum before it was computed: it is the engine's since then")
        return self._layout.join(self._parts)

    def joined_with_views(self) -> tuple[Tensor, list[Tensor]]:
        """The same, and its layers."""
        total = self.join()
        return total, self._layout.views(total)

    def add_to(self, views: list[Tensor]) -> None:
        """Add each layer to that of another."""
        torch._foreach_add_(views, self._parts)

    def release(self) -> None:
        """Give its memory back: it is in a sum, and nobody else may ask for it."""
        self._parts = []


class SumSoFar:
    """The sum of several gradients, one after the other."""

    __slots__ = ("_total", "_views", "members")

    def __init__(self) -> None:
        self.members = 0
        self._total: Tensor | None = None
        self._views: list[Tensor] = []

    def add(self, layers: Unjoined) -> None:
        """Add one that is not joined."""
        self.members += 1
        if self._total is None:
            # A copy even if nobody else wants this gradient: torch may give two layers one and the same tensor.
            self._total, self._views = layers.joined_with_views()
        else:
            layers.add_to(self._views)

    def plus(self, others: Iterable[Tensor]) -> Tensor:
        """The sum with these vectors."""
        assert self._total is not None, "nothing has been added"
        for other in others:
            self._total += other
        return self._total


class JoinedLater:
    """Of a gradient: it may have its layers instead of `total`, until somebody asks for that."""

    __slots__ = _NONE_HERE
    total: Tensor
    parts: Unjoined | None

    def hold(self, contents: Tensor | Unjoined) -> None:
        """Consist of this."""
        if isinstance(contents, Unjoined):
            self.parts = contents
        else:
            self.total, self.parts = contents, None

    if not TYPE_CHECKING:  # where types are checked, `total` is what a gradient has
        # Not `__getattr__`: a class that has one makes Python look up all of its attributes in the slowest way.
        def _joined(self) -> Tensor:
            if self.parts is not None:
                self.total, self.parts = self.parts.join(), None
            return _TOTAL.__get__(self)

        total = property(_joined, _TOTAL.__set__)


__all__ = ["JoinedLater", "SumSoFar", "Unjoined"]
