"""The gradients of a task's model on this machine: in one piece, layer by layer, or as recorded CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ownpace.core.blocks.micro_batch import GRAINS
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.layer_needs import OnNeed
from ownpace.core.learning.layer_work import sum_buckets
from ownpace.core.learning.out_of_memory import is_out_of_memory
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
        self._most = len(train)
        """Samples that are computed at once, at most: what fits into memory, as far as is known."""

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
        if indices.numel() > self._most:
            earlier, loss, last = self._all_but_last(indices, like, plus)
            total, of_last = self.compute(last, like, earlier, out)
            return total, _mean_loss(loss, of_last, len(indices), len(last))
        try:
            return self._compute(indices, like, plus, out)
        except (MemoryError, RuntimeError) as error:
            self._halve(error, len(indices))
        return self.compute(indices, like, plus, out)

    def _compute(self, indices: Tensor, like: Tensor, plus: Tensor | None, out: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs, targets = self._train.pick(indices)
        if self._captured is not None:
            replayed, loss = self._captured.gradient(inputs, targets)
            total = torch.add(replayed, 0 if plus is None else plus, out=out)
            return total, loss.clone()  # the next replay overwrites both
        if like.device.type == "cpu" and like.numel() > LARGE:  # layer by layer: the whole is never in memory twice
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
        if indices.numel() > self._most:
            if on_need is not None:  # the earlier pieces go through all layers
                on_need(len(self._model.layout.layers) - 1)
            plus, loss, last = self._all_but_last(indices, out, plus)
            of_last = self.compute_by_layer(last, out, plus, on_layer, on_need, on_loss)
            return _mean_loss(loss, of_last, len(indices), len(last))
        told: list[str] = []

        def layer_is_there(layer: int) -> None:
            told.append("layer")
            on_layer(layer)

        def turn(loss: Tensor) -> None:
            told.append("loss")
            if on_loss is not None:
                on_loss(loss)

        try:
            loss = self._model.gradient_by_layer(*self._train.pick(indices), out, plus, layer_is_there, on_need, turn)
        except (MemoryError, RuntimeError) as error:
            if "layer" in told:  # what was handed on cannot be taken back
                raise
            self._halve(error, len(indices))
            return self.compute_by_layer(indices, out, plus, on_layer, on_need, None if told else on_loss)
        self._keep_buffers()
        return loss

    def _all_but_last(self, indices: Tensor, like: Tensor, plus: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of all pieces but the last, the sum of their losses, and the samples of the last."""
        *pieces, last = indices.tensor_split(-(-len(indices) // self._most))
        losses = []
        for piece in pieces:
            plus, loss = self.compute(piece, like, plus, None)
            losses.append(loss * len(piece))
        assert plus is not None
        return plus, torch.stack(losses).sum(), last

    def _halve(self, error: Exception, samples: int) -> None:
        """So many samples at once do not fit into memory: compute half as many at once from now on, and say so."""
        if samples == 1 or not is_out_of_memory(error):
            raise error
        self._most = samples // 2
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        warnings.warn(
            f"{samples} samples at once do not fit into memory: at most {self._most} are computed at once from now on, "
            "which is slower; use a smaller batch_size, or set micro_batch",
            stacklevel=2,
        )

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
        buckets = sum_buckets(self._model.layout, values.element_size())
        if len(buckets) > 1:
            # With layers that are waited for: the first such pass is recorded, which takes long.
            self._model.gradient_by_layer(*batch, torch.empty_like(values), None, _nothing, _nothing)
            self.layer_times.backward_done(buckets[0])
        else:
            self._model.gradient(*batch)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _try_size(self, values: Tensor, indices: Tensor) -> None:
        """Let a GPU choose its kernels for a new size before the time is taken that such a micro-batch needs."""
        if self._device.type == "cuda" and len(indices) not in self._sizes and len(indices) <= self._most:
            self._sizes.add(len(indices))
            # With copies: running statistics must not count this pass.
            self._model.bind(values, [buffer.clone() for buffer in self._buffers])
            try:
                self._model.gradient(*self._train.pick(indices))
                torch.cuda.synchronize(self._device)
            except (MemoryError, RuntimeError) as error:
                self._halve(error, len(indices))

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


def _mean_loss(summed: Tensor, of_last: Tensor, samples: int, last: int) -> Tensor:
    return (summed + of_last * last) / samples


def _nothing(layer: int) -> None:
    pass
