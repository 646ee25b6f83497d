"""A step of SGD on a GPU in one kernel, for steps that a worker makes alone, or with others on the same GPU.

Written out, a step with clipping, decay and Nesterov's momentum goes through the vector a dozen times, which on a slow
card is a tenth of a small micro-batch's time. Fused, it rounds elsewhere than the written-out one: replicas that all
have to get the same bits from the same sum, on different machines, make their steps the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


def is_possible(optimizer: Optimizer, values: Tensor) -> bool:
    """Whether this optimizer's step can be made so."""
    return values.is_cuda and type(optimizer) is torch.optim.SGD and hasattr(torch, "_fused_sgd_")


def step(
    optimizer: Optimizer, values: Tensor, buffer: Tensor | None, total: Tensor, scale: Tensor | float, lr_factor: float
) -> Tensor | None:
    """Step `values`, and `buffer`, in place, with `total` · `scale` for a gradient.

    Returns:
        The momentum buffer, which the first step makes; None without momentum.
    """
    group = optimizer.param_groups[0]
    momentum = group["momentum"]
    is_first = bool(momentum) and buffer is None  # without momentum, a GPU warns that it says nothing
    if is_first:
        buffer = torch.empty_like(values)
    torch._fused_sgd_(
        [values],
        [total * scale],
        [buffer] if momentum and buffer is not None else [],
        weight_decay=group["weight_decay"],
        momentum=momentum,
        lr=group["lr"] * lr_factor,
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=is_first,
    )
    # Recorded CUDA graphs see by a tensor's version whether they must copy it again.
    torch.autograd.graph.increment_version(values)
    return buffer


__all__ = ["is_possible", "step"]
