"""CUDA graphs: a gradient as one launch instead of some hundred, for micro-batches that are short.

Queueing the kernels of a forward and a backward pass takes Python some milliseconds, whatever the size of the batch.
On a fast GPU with a small micro-batch, that is longer than computing it. A graph is recorded once for each size and
then replayed. Only kernels are replayed, not what Python does between them, so this is for models whose forward pass is
the same every time: it is off unless asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GradientFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes a gradient of inputs and targets into a flat vector; returns the mean loss."""
# As many as in torch's own examples: libraries choose kernels and allocate workspaces in the first passes.
_WARM_UP = 3


class CapturedGradients:
    """Recorded gradients, one for each number of samples, at parameters that stay in one place."""

    def __init__(self, compute: GradientFn, like: Tensor) -> None:
        self.values = torch.empty_like(like)
        """Where the model's parameters must be bound while recording."""
        self._compute = compute
        self._source: tuple[Tensor, int] | None = None
        self._graphs: dict[int, _Recorded] = {}
        # One pool for graphs of all sizes: only one runs at a time, and what it leaves is copied before the next.
        self._pool = torch.cuda.graph_pool_handle()

    def set(self, values: Tensor) -> None:
        """Use these parameters; they are copied if they have changed since the last time."""
        version: int = values._version  # torch's count of changes in place, which has no public name
        if self._source is None or self._source[0] is not values or self._source[1] != version:
            self.values.copy_(values)
            self._source = values, version

    def knows(self, samples: int) -> bool:
        """Whether a gradient of this many samples was recorded."""
        return samples in self._graphs

    def record(self, inputs: Tensor, targets: Tensor) -> None:
        """Record the gradient of as many samples as these."""
        # Tensors of its own: a graph reads and writes the same addresses at every replay.
        inputs, targets, total = inputs.clone(), targets.clone(), torch.empty_like(self.values)
        device = self.values.device
        stream = torch.cuda.Stream(device)
        # Kernels are chosen and libraries set up before the recording, on a side stream as torch requires.
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._compute(inputs, targets, total)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads (those of collectives) go on using the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            loss = self._compute(inputs, targets, total)
        self._graphs[len(targets)] = _Recorded(inputs, targets, total, loss, graph)

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The flat sum of the samples' gradients and their mean loss; both are overwritten by the next call."""
        recorded = self._graphs[len(targets)]
        recorded.inputs.copy_(inputs)
        recorded.targets.copy_(targets)
        recorded.graph.replay()
        return recorded.total, recorded.loss


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A graph, and the tensors it reads from and writes to."""

    inputs: Tensor
    targets: Tensor
    total: Tensor
    loss: Tensor
    graph: torch.cuda.CUDAGraph


__all__ = ["CapturedGradients"]
