"""The gradients of a task's model on this machine: in one piece, layer by layer, or as recorded CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ownpace.core.blocks.micro_batch import GRAINS
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.layer_needs import OnNeed
from ownpace.core.learning.task import Samples
from ownpace.engines.layer_times import LayerTimes
from ownpace.engines.process.node.finite import LARGE


class GradientComputer:
    """Computes the sum of the gradients of some samples, at any point. The model's buffers stay with it."""

    def __init__(self, model: FlatModel, train: Samples, device: torch.device, *, graphs: bool) -> None:
        self._model = model
        self._train = train
        self._device = device
        self._buffers = model.new_buffers()
        self._captured = model.capture(self._buffers) if graphs else None
        self._sizes: set[int] = set()

    @property
    def replays(self) -> bool:
        """Whether gradients are recorded graphs, which come out in one piece."""
        return self._captured is not None

    def bind(self, values: Tensor, indices: Tensor) -> None:
        """Get ready for the gradient of these samples at these parameters. None of this counts as computing."""
        if self._captured is None:
            self._try_size(values, indices)
            self._model.bind(values, self._buffers)
        else:
            self._record(values, indices)
            self._captured.set(values)

    def compute(self, indices: Tensor, like: Tensor, plus: Tensor | None, out: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum over the samples, added to `plus`, into `out` if that is given; and the mean loss."""
        inputs, targets = self._train.pick(indices)
        if self._captured is not None:
            replayed, loss = self._captured.gradient(inputs, targets)
            total = torch.add(replayed, 0 if plus is None else plus, out=out)
            return total, loss.clone()  # the next replay overwrites both
        if like.device.type == "cpu" and len(like) > LARGE:  # layer by layer: the whole is never in memory twice
            total = torch.empty_like(like) if out is None else out
            return total, self.compute_by_layer(indices, total, plus, _nothing)
        total, loss = self._model.gradient(inputs, targets, out)
        self._keep_buffers()
        return total if plus is None else total.add_(plus), loss

    def compute_by_layer(
        self,
        indices: Tensor,
        out: Tensor,
        plus: Tensor | None,
        on_layer: Callable[[int], None],
        on_need: OnNeed | None = None,
        on_loss: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """The same, into `out`, as `FlatModel.gradient_by_layer` says. Returns the mean loss."""
        loss = self._model.gradient_by_layer(*self._train.pick(indices), out, plus, on_layer, on_need, on_loss)
        self._keep_buffers()
        return loss

    def _keep_buffers(self) -> None:
        if self._buffers:  # a module may have replaced some in its forward pass
            self._buffers[:] = self._model.take_buffers()

    @cached_property
    def layer_times(self) -> LayerTimes:
        """When layers are needed and ready, at a prescribed pace."""
        return LayerTimes(self._model.task, self._model.layout)

    def warm_up(self, values: Tensor, samples: int) -> None:
        """Compute one gradient that is thrown away, so that what is made on first use exists before time begins."""
        size = min(samples, len(self._train))
        if self._captured is not None:
            # Every size that equal-time micro-batches can have: recorded later, it would cost time of the run.
            for part in range(1, GRAINS + 1):
                self._record(values, torch.arange(max(1, size * part // GRAINS)))
            return
        self._model.bind(values, self._model.new_buffers())
        batch = self._train.pick(torch.arange(size))
        if len(values) > LARGE:
            self._model.gradient_by_layer(*batch, torch.empty_like(values), None, _nothing)
        else:
            self._model.gradient(*batch)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _try_size(self, values: Tensor, indices: Tensor) -> None:
        """Let a GPU choose its kernels for a new size before the time is taken that such a micro-batch needs."""
        if self._device.type == "cuda" and len(indices) not in self._sizes:
            self._sizes.add(len(indices))
            # With copies: running statistics must not count this pass.
            self._model.bind(values, [buffer.clone() for buffer in self._buffers])
            self._model.gradient(*self._train.pick(indices))
            torch.cuda.synchronize(self._device)

    def _record(self, values: Tensor, indices: Tensor) -> None:
        """Record the gradient of as many samples as these, if it is not yet; nothing else changes."""
        assert self._captured is not None
        if not self._captured.knows(len(indices)):
            # Recording computes real gradients: BatchNorm's statistics must not count them.
            before = [buffer.clone() for buffer in self._buffers]
            self._captured.set(values)
            self._captured.record(*self._train.pick(indices))
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.copy_(value)

    def buffer_list(self) -> list[Tensor]:
        """Copies of the model's buffers."""
        return [buffer.detach().clone() for buffer in self._buffers]

    def take_buffers(self, buffers: Sequence[Tensor]) -> None:
        """Go on with these."""
        for mine, other in zip(self._buffers, buffers, strict=True):
            mine.copy_(other)

    def buffers(self) -> Tensor | None:
        """The model's buffers in one vector; None: it has none."""
        if not self._buffers:
            return None
        return torch.cat([buffer.detach().reshape(-1).double() for buffer in self._buffers])


def _nothing(layer: int) -> None:
    pass
