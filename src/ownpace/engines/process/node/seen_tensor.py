"""Whether a tensor is still what it was."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import TensorWeakRef


class SeenTensor:
    """A tensor as it was at a moment; its memory is not kept when the script lets go of it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._changes = TensorWeakRef(tensor), _changes(tensor)

    def is_same(self, tensor: Tensor | None) -> bool:
        """Whether this is the same tensor, whatever was written to it."""
        return tensor is not None and self._tensor() is tensor

    def is_untouched(self, tensor: Tensor | None) -> bool:
        """Whether it is the same, and torch knows of no change; nothing waits for a GPU."""
        return tensor is not None and self._tensor() is tensor and _changes(tensor) == self._changes


def _changes(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    return tensor._version
