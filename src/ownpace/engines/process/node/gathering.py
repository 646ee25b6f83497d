"""Sums over the samples, out of a user's gradients, which are means over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALL = 1 << 14
"""Numbers. For layers of that size on average, calls cost more than another pass over the memory; on a GPU always."""


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


def put_sums(zero: Tensor, means: Sequence[Tensor | None], samples: int, out: Tensor, views: list[Tensor]) -> None:
    """The same of several layers, side by side in `out`, of which `views` are views."""
    there = [mean for mean in means if mean is not None and mean.dtype == out.dtype]
    if len(there) < len(means) or not (out.is_cuda or out.numel() <= _SMALL * len(means)):
        for mean, view in zip(means, views, strict=True):
            put_sum(zero, mean, samples, view)
        return
    torch._foreach_copy_(views, there)
    if out.is_cuda:
        out.mul_(samples).add_(0.0)
    else:
        torch.add(zero, out, alpha=samples, out=out)
