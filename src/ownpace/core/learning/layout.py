"""Where each layer of a model is in one flat vector of all its parameters, so that a transfer is one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Shard

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
        if self._shapes is None:
            return torch.cat([layer.flatten(part) for layer, part in zip(self.layers, parts, strict=True)], out=out)
        if out is None:
            return torch._C._nn.flatten_dense_tensors(list(parts))
        return torch.cat([part.reshape(-1) for part in parts], out=out)

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
