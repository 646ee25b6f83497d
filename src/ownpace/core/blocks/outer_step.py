"""The step that all workers take together, with how far each has got alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative, positive


class OuterStep:
    """x ← x − ζ (Δ + μ m) with m ← μ m + Δ: Nesterov's; with ζ = 1 and μ = 0, the mean of where workers got."""

    def __init__(self, me: Worker, lr: float, momentum: float) -> None:
        self._lr = lr
        self._momentum = momentum
        self._buffer: Tensor | None = None
        if momentum:
            # Kept: a script's next loop over the data goes on with it.
            self._buffer = me.kept.setdefault("outer momentum", torch.zeros_like(me.parameters.values))

    def take(self, start: Tensor, total: Gradient) -> Tensor:
        """One step from `start` along the mean of a sum of differences, Δ; returns where it leads.

        All workers take it from the same start with the same sum, so they get there to the bit.
        """
        if not total.samples:
            return start  # no update: momentum must not go on, either
        difference = total.mean
        if self._buffer is not None:
            self._buffer.mul_(self._momentum).add_(difference)
            difference = difference + self._momentum * self._buffer
        return start - (difference if self._lr == 1 else self._lr * difference)


def check_outer_step(lr: float, momentum: float) -> None:
    """Raise if this cannot be an outer step."""
    positive(outer_lr=lr)
    not_negative(outer_momentum=momentum)
    if momentum >= 1:
        raise InputError(f"outer_momentum is {momentum}; it must be below 1, as in 0.9")


__all__ = ["OuterStep", "check_outer_step"]
