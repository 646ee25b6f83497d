"""Optimizers whose step is given a closure."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def accept_closures(optimizer: Optimizer) -> None:
    """Let `optimizer.step(closure)` compute the gradient before it hands it over."""
    hand_over = optimizer.step

    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> object:
        if closure is None:
            return hand_over()
        with torch.enable_grad():
            loss = closure()
        # None: training_step skipped the batch, or (manual optimization) the gradient is there already.
        if loss is not None or any(p.grad is not None for group in self.param_groups for p in group["params"]):
            hand_over()
        return loss

    for name in ("_wrapped_by_lr_sched", "of_a_fleet"):
        setattr(step, name, True)
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
