"""A backward pass with less around it: for a small net, what torch does before one is a twentieth of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Variable

try:
    from torch.autograd.graph import _engine_run_backward

    _run_here = Variable._execution_engine.run_backward
except (ImportError, AttributeError):  # another torch: what it says of itself may change with every release
    _engine_run_backward = None  # type: ignore[assignment]


def gradients_of(loss: Tensor, parameters: Sequence[Tensor], seed: Tensor) -> Sequence[Tensor | None]:
    """What `torch.autograd.grad` returns; None for a parameter that took no part in the loss.

    `seed`: what to begin with, of the loss's shape.
    """
    if _engine_run_backward is None or not loss.requires_grad:  # torch has an error for that
        return torch.autograd.grad(loss, parameters, seed, allow_unused=True)
    # The CPU's pass is made by this thread. For others, torch first hands the caller's context to the device's thread.
    run = _run_here if loss.device.type == "cpu" else _engine_run_backward
    keep_graph = create_graph = False
    return run(
        (loss,), (seed,), keep_graph, create_graph, tuple(parameters), allow_unreachable=True, accumulate_grad=False
    )


__all__ = ["gradients_of"]
