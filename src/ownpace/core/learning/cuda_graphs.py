"""CUDA graphs: a gradient as one launch instead of some hundred, for micro-batches that are short.

Queueing the kernels of a forward and a backward pass takes Python some milliseconds, whatever the size of the batch.
On a fast card with a small micro-batch, that is longer than computing it. A graph is recorded once for each size and
then replayed. What Python does beside the kernels is not replayed, so this is for models whose forward pass is the
same every time: it is off unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GradientFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes a gradient of inputs and targets into a flat vector; returns the mean loss."""
_WARM_UP = 3


class CapturedGradients:
    """Recorded gradients, one for each number of samples, at parameters that lie in one place."""

    def __init__(self, compute: GradientFn, like: Tensor) -> None:
        self.values = torch.empty_like(like)
        """Where the model's parameters must be bound while recording."""
        self._compute = compute
        self._source: tuple[Tensor, int] | None = None
        self._graphs: dict[int, _Recorded] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def set(self, values: Tensor) -> None:
        """Use these parameters; they are copied if they have changed since the last time."""
        if self._source is None or self._source[0] is not values or self._source[1] != values._version:
            self.values.copy_(values)
            self._source = values, values._version

    def knows(self, samples: int) -> bool:
        """Whether a gradient of so many samples was recorded."""
        return samples in self._graphs

    def record(self, inputs: Tensor, targets: Tensor) -> None:
        """Record the gradient of as many samples as these."""
        self._graphs[len(targets)] = _Recorded(self._compute, inputs, targets, self.values, self._pool)

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The flat sum of the samples' gradients and their mean loss; both are overwritten by the next call."""
        recorded = self._graphs[len(targets)]
        recorded.inputs.copy_(inputs)
        recorded.targets.copy_(targets)
        recorded.graph.replay()
        return recorded.total, recorded.loss


class _Recorded:
    def __init__(self, compute: GradientFn, inputs: Tensor, targets: Tensor, like: Tensor, pool: Any) -> None:
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.total = torch.empty_like(like)
        stream = torch.cuda.Stream(like.device)
        stream.wait_stream(torch.cuda.current_stream(like.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):  # kernels are chosen and libraries are set up outside of the recording
                compute(self.inputs, self.targets, self.total)
        torch.cuda.current_stream(like.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads (of collectives, say) go on using the card meanwhile.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.loss = compute(self.inputs, self.targets, self.total)


__all__ = ["CapturedGradients"]
