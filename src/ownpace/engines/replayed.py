"""Gradients of several workers as recorded CUDA graphs, one model for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from ownpace.core.learning.flat import Buffers, FlatModel

_MOST_GRAPHS = 24
"""Each keeps memory on the GPU. Sizes that come later, or only once, are computed as they would be without graphs."""


class ReplayedGradients:
    """One set of graphs: a worker's parameters and buffers are copied in before a replay, its buffers out after it."""

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._buffers = model.new_buffers()
        self._captured = model.capture(self._buffers)
        self._sizes: dict[int, int] = {}

    def wants(self, samples: int) -> bool:
        """Whether a gradient of this many samples is to be replayed: if the size has come before."""
        self._sizes[samples] = self._sizes.get(samples, 0) + 1
        return self._captured.knows(samples) or (
            self._sizes[samples] > 1 and sum(map(self._captured.knows, self._sizes)) < _MOST_GRAPHS
        )

    def gradient(
        self, values: Tensor, buffers: Buffers, inputs: Tensor, targets: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """The sum of the samples' gradients, layer by layer, and their mean loss; buffers are changed in place."""
        self._captured.set(values)
        if not self._captured.knows(len(targets)):
            # An evaluation has pointed the model elsewhere since.
            self._model.bind(self._captured.values, self._buffers)
            self._captured.record(inputs, targets)
        # After recording, which computes real gradients: running statistics must not count those.
        _copy(buffers, self._buffers)
        total, loss = self._captured.gradient(inputs, targets)
        _copy(self._buffers, buffers)
        return self._model.layout.views(total.clone()), loss  # the next replay overwrites the total


def _copy(from_: Buffers, to: Buffers) -> None:
    """Copy all of them, those of one type in one launch: there are sixty in a ResNet."""
    for dtype in {buffer.dtype for buffer in to}:
        pairs = [(mine, other) for mine, other in zip(to, from_, strict=True) if mine.dtype == dtype]
        torch._foreach_copy_([mine for mine, _ in pairs], [other for _, other in pairs])


__all__ = ["ReplayedGradients"]
