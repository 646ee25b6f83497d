"""Sums over the samples, out of a user's gradients, which are means over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.learning.layout import Layer

_SMALL = 1 << 16
"""Numbers. For layers of that size on average, calls cost more than another pass over the memory."""


def put_sum(zero: Tensor, mean: Tensor | None, samples: int, out: Tensor) -> None:
    """A layer's sum over the samples, out of its mean: nowhere −0.0, as that stands for no gradient at all.

    Args:
        zero: Of the sum's type. Not a number, so that half precision is multiplied in that.
        mean: None: there is no gradient.
        samples: How many.
        out: Where to put it.
    """
    if mean is None:
        out.fill_(-0.0)
    elif mean.dtype == out.dtype:
        torch.add(zero, mean, alpha=samples, out=out)  # 0 + n·g: what is −0.0 becomes 0.0
    else:
        out.copy_(mean)
        out.mul_(samples).add_(0.0)


def put_sums(zero: Tensor, means: Sequence[Tensor | None], samples: int, out: Tensor, layers: Sequence[Layer]) -> None:
    """The same of several layers, side by side in `out`."""
    there = [mean for mean in means if mean is not None and mean.dtype == out.dtype]
    is_usual = len(there) == len(means) and not any(layer.channels_last for layer in layers)
    if is_usual and len(out) <= _SMALL * len(layers):
        torch.cat([mean.reshape(-1) for mean in there], out=out)
        torch.add(zero, out, alpha=samples, out=out)
        return
    parts = out.split_with_sizes([layer.stop - layer.start for layer in layers])
    views = [layer.view(part) for layer, part in zip(layers, parts, strict=True)]
    if out.is_cuda and len(there) == len(means):  # there, starting many calls takes longest
        torch._foreach_copy_(views, there)
        out.mul_(samples).add_(0.0)
        return
    for mean, view in zip(means, views, strict=True):
        put_sum(zero, mean, samples, view)
