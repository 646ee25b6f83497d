"""A model seen as one flat vector of parameters, so that a transfer is one tensor and a step is one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Shard
from ownpace.core.learning.backward import gradients_of
from ownpace.core.learning.cuda_graphs import CapturedGradients
from ownpace.core.learning.layer_needs import LayerNeeds, OnNeed
from ownpace.core.learning.task import Task

Buffers = list[Tensor]
"""One worker's copy of what a model keeps besides its parameters (BatchNorm's running statistics)."""

LayerShape = tuple[str, torch.Size, bool]
"""A layer's name and shape, and whether it is channels-last."""


@dataclass(frozen=True)
class Layer:
    """One parameter tensor of a model and its range in the flat vector."""

    name: str
    start: int
    stop: int
    shape: torch.Size
    channels_last: bool = False
    """Whether its values are in the order of torch's channels-last format, which GPUs prefer for convolutions."""

    def view(self, part: Tensor) -> Tensor:
        """Its range of a flat vector, in its own shape."""
        if not self.channels_last:
            return part.view(self.shape)
        outputs, inputs, height, width = self.shape
        return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def flatten(self, tensor: Tensor) -> Tensor:
        """The other way round."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).reshape(-1)


class Layout:
    """The range of each trainable parameter of a module in the flat vector, in network order.

    >>> layout = Layout(nn.Linear(3, 2))
    >>> [(layer.name, layer.start, layer.stop) for layer in layout.layers]
    [('weight', 0, 6), ('bias', 6, 8)]
    """

    def __init__(self, layers: nn.Module | Sequence[LayerShape]) -> None:
        placed, start = [], 0
        for name, shape, channels_last in _shapes(layers) if isinstance(layers, nn.Module) else layers:
            placed.append(Layer(name, start, start + shape.numel(), shape, channels_last))
            start += shape.numel()
        self.layers = tuple(placed)
        self.size = start
        self._sizes = [layer.stop - layer.start for layer in placed]
        # One call for all layers, where all are in the usual order. Not with an empty one, which would lose its shape,
        # nor with a single one, which joining would not copy.
        at_once = len(placed) > 1 and all(self._sizes) and not any(layer.channels_last for layer in placed)
        self._shapes = [torch.empty(layer.shape, device="meta") for layer in placed] if at_once else None

    @classmethod
    def of(cls, shapes: Sequence[LayerShape]) -> Layout:
        """The layout of layers with these names and shapes, in this order."""
        return cls(shapes)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each layer of a flat vector, in its own shape."""
        if self._shapes is not None:
            return list(torch._C._nn.unflatten_dense_tensors(flat, self._shapes))
        parts = flat.split_with_sizes(self._sizes)
        return [layer.view(part) for part, layer in zip(parts, self.layers, strict=True)]

    def join(self, parts: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """A flat vector (`out`, if given) of what each layer has, in its own shape."""
        if self._shapes is not None and out is None:
            return torch._C._nn.flatten_dense_tensors(list(parts))
        return torch.cat([layer.flatten(part) for layer, part in zip(self.layers, parts, strict=True)], out=out)

    def absent(self, flat: Tensor) -> list[bool]:
        """Which layers of a flat gradient are none: all their numbers are −0.0."""
        starts = torch.tensor([min(layer.start, self.size - 1) for layer in self.layers], device=flat.device)
        # By their first numbers, all in one go; then those that seem to be none are looked at in full.
        seem = _is_minus_zero(flat[starts]).tolist()
        return [
            layer.start == layer.stop or (none and bool(_is_minus_zero(flat[layer.start : layer.stop]).all()))
            for layer, none in zip(self.layers, seem, strict=True)
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
        cuts = [0]  # how many layers come before each cut
        for index in range(1, count):
            # At least one layer for every shard, also for those whose cuts follow.
            allowed = range(cuts[-1] + 1, len(ends) - (count - index))
            cuts.append(min(allowed, key=lambda cut: abs(ends[cut] - self.size * index / count)))
        cuts.append(len(self.layers))
        return tuple(Shard(i, ends[a], ends[b]) for i, (a, b) in enumerate(pairwise(cuts)))


class FlatModel:
    """A task's model, whose parameters can be pointed at any flat vector and whose gradient comes out flat."""

    def __init__(self, task: Task, device: torch.device, autocast: torch.dtype | None = None) -> None:
        self.task = task
        self.autocast = autocast
        self.module = task.model().to(device)
        if device.type == "cuda":
            # Before the layout is made, which takes the order of the values from the weights as they are.
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.layout = Layout(self.module)
        parameters = zip(self.layout.layers, self._trainable(), strict=True)
        self.initial = torch.cat([layer.flatten(parameter.detach()) for layer, parameter in parameters])
        self._parameters = self._trainable()
        self._buffers = [
            (submodule._buffers, name)  # the dictionary itself: going through the module costs more than a small layer
            for submodule in self.module.modules()
            for name, buffer in submodule.named_buffers(recurse=False)
            if buffer is not None
        ]
        self._bound: Tensor | None = None
        self.bind(self.initial, self.take_buffers())  # the module's own copy can go
        self._seeds: dict[int, Tensor] = {}
        self._hooked = False
        self._by_layer: _ByLayer | None = None

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def new_buffers(self) -> Buffers:
        """A copy of the model's buffers, for one worker to keep as its own."""
        return [buffer.clone() for buffer in self.take_buffers()]

    def bind(self, values: Tensor, buffers: Buffers) -> None:
        """Point the module at these parameters and buffers. Nothing is copied."""
        # By identity: a step in place changes the vector that is bound already, and nothing has to be done.
        if values is not self._bound:
            for parameter, view in zip(self._parameters, self.layout.views(values), strict=True):
                # Through .data: pointing a parameter elsewhere is not an operation that autograd should record.
                parameter.data = view
            self._bound = values
        for (place, name), buffer in zip(self._buffers, buffers, strict=True):
            place[name] = buffer

    def take_buffers(self) -> Buffers:
        """The module's buffers as they are now; a module may have replaced some in its forward pass."""
        buffers = [place[name] for place, name in self._buffers]
        return [buffer for buffer in buffers if buffer is not None]

    def gradient(self, inputs: Tensor, targets: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum over the samples of the per-sample gradients, flat (in `out`, if given), and their mean loss."""
        parts, loss = self.layer_gradients(inputs, targets)
        return self.layout.join(parts, out), loss

    def layer_gradients(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        """The same, layer by layer, each in its own shape."""
        loss, seed = self._forward(inputs, targets)
        # Layers that took no part in the loss (allow_unused) have no gradient; here they count as zero.
        parts = gradients_of(loss, self._parameters, seed)
        return [
            torch.zeros_like(parameter) if part is None else part
            for parameter, part in zip(self._parameters, parts, strict=True)
        ], loss.detach()

    def capture(self, buffers: Buffers) -> CapturedGradients:
        """Gradients of this model that are recorded on a GPU and replayed, with these buffers."""
        captured = CapturedGradients(self._into, self.initial)
        self.bind(captured.values, buffers)
        return captured

    def _into(self, inputs: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        return self.gradient(inputs, targets, out)[1]

    def gradient_by_layer(
        self,
        inputs: Tensor,
        targets: Tensor,
        out: Tensor,
        plus: Tensor | None,
        on_layer: Callable[[int], None],
        on_need: OnNeed | None = None,
        on_loss: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """The same, into `out`, added to `plus`; `on_layer` is called with each layer as soon as it is ready.

        With `on_need`, parameters may change until they are needed: it is called before the forward pass uses a layer.
        `on_loss` is called between the two passes.
        """
        self._by_layer = by_layer = _ByLayer(
            self.layout.views(out), None if plus is None else self.layout.views(plus), on_layer
        )
        if not self._hooked:
            # Once, for good: hooks stay on the parameters, and `_by_layer` says where the gradients of this pass go.
            self._hooked = True
            for index, parameter in enumerate(self._parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._ready, index))
        try:
            with nullcontext() if on_need is None else self._needs.told(on_need):
                loss, seed = self._forward(inputs, targets)
            if on_loss is not None:
                on_loss(loss.detach())
            # Not torch.autograd.grad, which `gradient` uses: it does not call post-accumulate hooks.
            loss.backward(seed)
        finally:
            self._by_layer = None
        # Layers that took no part in the loss, last first as in a backward pass: all processes must send in one order.
        for index in sorted(by_layer.missing, reverse=True):
            by_layer.take(index, None)
        return loss.detach()

    @cached_property
    def _needs(self) -> LayerNeeds:
        return LayerNeeds(self.module, self._parameters)

    def _ready(self, index: int, parameter: Tensor) -> None:
        if self._by_layer is not None:
            gradient = parameter.grad
            # At once: otherwise all gradients would be in memory twice, and the next pass would add to them. Before it
            # is handed on: that may end the pass with an error.
            parameter.grad = None
            self._by_layer.take(index, gradient)

    def _forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, and what to begin the backward pass with."""
        samples = len(targets)
        if self.autocast is None:
            loss = self.task.objective(self.module, inputs, targets)
        else:
            with torch.autocast(inputs.device.type, self.autocast, cache_enabled=False):  # each weight is used once
                loss = self.task.objective(self.module, inputs, targets)
        # The sum is n times the mean: scaling the scalar where the backward pass begins costs nothing.
        seed = self._seeds.get(samples)
        if seed is None:
            seed = self._seeds[samples] = torch.full_like(loss, samples)
        return loss, seed

    def mean_buffers(self, workers: Sequence[Buffers]) -> Buffers:
        """One set of buffers for evaluation or saving: the mean over the workers (of counts: the largest)."""
        return [
            torch.stack(copies).mean(0) if copies[0].is_floating_point() else torch.stack(copies).amax(0)
            for copies in zip(*workers, strict=True)
        ]


def _shapes(module: nn.Module) -> list[LayerShape]:
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not parameters:
        raise InputError(f"{type(module).__name__} has no trainable parameters; there is nothing to train")
    if len({p.dtype for _, p in parameters}) > 1:
        given = ", ".join(sorted({str(p.dtype) for _, p in parameters}))
        raise InputError(f"the model's parameters are of several types ({given}); convert them to one")
    return [(name, parameter.shape, is_channels_last(parameter)) for name, parameter in parameters]


def _is_minus_zero(values: Tensor) -> Tensor:
    return (values == 0) & values.signbit()


def is_channels_last(parameter: Tensor) -> bool:
    """Whether a tensor's values are in the order of torch's channels-last format."""
    return (
        # The kernel of a 1×1 convolution is contiguous in both orders: then the usual one counts.
        parameter.dim() == 4
        and parameter.is_contiguous(memory_format=torch.channels_last)
        and not parameter.is_contiguous()
    )


class _ByLayer:
    """Where the gradients of a backward pass go, layer by layer."""

    def __init__(self, out: list[Tensor], plus: list[Tensor] | None, on_layer: Callable[[int], None]) -> None:
        self._out = out
        self._plus = plus
        self._on_layer = on_layer
        self.missing = set(range(len(out)))

    def take(self, index: int, gradient: Tensor | None) -> None:
        """One layer's gradient is ready; None: it is zero."""
        out = self._out[index]
        if gradient is None:
            out.zero_() if self._plus is None else out.copy_(self._plus[index])
        elif self._plus is None:
            out.copy_(gradient)
        else:
            torch.add(gradient, self._plus[index], out=out)
        self.missing.discard(index)
        self._on_layer(index)
