"""A model whose parameters are one flat vector, and whose gradient comes out flat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from ownpace.core.learning.backward import gradients_of
from ownpace.core.learning.cuda_graphs import CapturedGradients
from ownpace.core.learning.layer_needs import LayerNeeds, OnNeed
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.task import Task

Buffers = list[Tensor]
"""One worker's copy of what a model keeps besides its parameters (BatchNorm's running statistics)."""


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
        return self.layout.join(parts, out), loss.detach()

    def layer_gradients(self, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
        """The same, layer by layer, each in its own shape."""
        loss, seed = self._forward(inputs, targets)
        # Layers that took no part in the loss (allow_unused) have no gradient; here they count as zero.
        parts = gradients_of(loss, self._parameters, seed)
        return [
            torch.zeros_like(parameter) if part is None else part
            for parameter, part in zip(self._parameters, parts, strict=True)
        ], loss

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
        samples = targets.shape[0]  # `len` of a tensor goes through Python, for every gradient
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
