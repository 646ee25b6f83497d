"""A model seen as one flat vector of parameters, so that a transfer is one tensor and a step is one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ownpace.core.errors import InputError
from ownpace.core.task import Task
from ownpace.core.values import Shard

Buffers = list[Tensor]
"""One worker's copy of what a model keeps beside its parameters (BatchNorm's running statistics)."""


@dataclass(frozen=True)
class Layer:
    """One parameter tensor of a model and its range in the flat vector."""

    name: str
    start: int
    stop: int
    shape: torch.Size


class Layout:
    """Where each trainable parameter of a module lies in the flat vector, in network order.

    >>> layout = Layout(nn.Linear(3, 2))
    >>> [(layer.name, layer.start, layer.stop) for layer in layout.layers]
    [('weight', 0, 6), ('bias', 6, 8)]
    """

    def __init__(self, module: nn.Module) -> None:
        layers, start = [], 0
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not parameters:
            raise InputError(f"{type(module).__name__} has no trainable parameters; there is nothing to train")
        if len({p.dtype for _, p in parameters}) > 1:
            given = ", ".join(sorted({str(p.dtype) for _, p in parameters}))
            raise InputError(f"the model's parameters are of several types ({given}); convert them to one")
        for name, parameter in parameters:
            layers.append(Layer(name, start, start + parameter.numel(), parameter.shape))
            start += parameter.numel()
        self.layers = tuple(layers)
        self.size = start
        self._sizes = [layer.stop - layer.start for layer in layers]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each layer of a flat vector, in its own shape."""
        return [
            part.view(layer.shape) for part, layer in zip(flat.split_with_sizes(self._sizes), self.layers, strict=True)
        ]

    def shards(self, count: int) -> tuple[Shard, ...]:
        """Divide the vector into contiguous ranges of whole layers, of sizes as equal as that allows.

        Raises:
            InputError: There are fewer layers than shards.
        """
        if count > len(self.layers):
            raise InputError(
                f"{count} servers, but the model has only {len(self.layers)} layers to divide among them; use fewer"
            )
        ends = [0, *(layer.stop for layer in self.layers)]
        cuts = [0]  # how many layers lie before each cut
        for index in range(1, count):
            allowed = range(cuts[-1] + 1, len(ends) - (count - index))
            cuts.append(min(allowed, key=lambda cut: abs(ends[cut] - self.size * index / count)))
        cuts.append(len(self.layers))
        return tuple(Shard(i, ends[a], ends[b]) for i, (a, b) in enumerate(pairwise(cuts)))


class FlatModel:
    """A task's model, whose parameters can be pointed at any flat vector and whose gradient comes out flat."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task = task
        self.module = task.model().to(device)
        self.layout = Layout(self.module)
        self.initial = torch.cat([p.detach().reshape(-1) for p in self._trainable()])
        self._parameters = self._trainable()
        self._buffers = [
            (submodule, name)
            for submodule in self.module.modules()
            for name, buffer in submodule.named_buffers(recurse=False)
            if buffer is not None
        ]
        self._bound: Tensor | None = None
        self._seeds: dict[int, Tensor] = {}

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def new_buffers(self) -> Buffers:
        """A copy of the model's buffers, for one worker to keep as its own."""
        return [submodule._buffers[name].clone() for submodule, name in self._buffers]  # type: ignore[union-attr]

    def bind(self, values: Tensor, buffers: Buffers) -> None:
        """Point the module at these parameters and buffers. Nothing is copied."""
        if values is not self._bound:
            for parameter, view in zip(self._parameters, self.layout.views(values), strict=True):
                parameter.data = view
            self._bound = values
        for (submodule, name), buffer in zip(self._buffers, buffers, strict=True):
            submodule._buffers[name] = buffer

    def take_buffers(self) -> Buffers:
        """The module's buffers as they are now; a module may have replaced some in its forward pass."""
        return [submodule._buffers[name] for submodule, name in self._buffers]  # type: ignore[misc]

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """The sum over the samples of the per-sample gradients, flat, and the sum of their losses."""
        samples = len(targets)
        loss = self.task.objective(self.module, inputs, targets)
        # The sum is n times the mean: scaling the scalar where the backward pass begins costs nothing.
        seed = self._seeds.get(samples)
        if seed is None:
            seed = self._seeds[samples] = torch.full_like(loss, samples)
        parts = torch.autograd.grad(loss, self._parameters, seed, allow_unused=True)
        flat = [
            torch.zeros_like(parameter).view(-1) if part is None else part.reshape(-1)
            for parameter, part in zip(self._parameters, parts, strict=True)
        ]
        return torch.cat(flat), loss.item() * samples

    def mean_buffers(self, workers: Sequence[Buffers]) -> Buffers:
        """One set of buffers for evaluation or saving: the mean over the workers (of counts: the largest)."""
        return [
            torch.stack(copies).mean(0) if copies[0].is_floating_point() else torch.stack(copies).amax(0)
            for copies in zip(*workers, strict=True)
        ]
