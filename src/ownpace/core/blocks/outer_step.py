"""The step that all workers take together, with how far each has got alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Worker
from ownpace.core.settings import not_negative, positive


class OuterStep:
    """x ← x − ζ (Δ + μ m) with m ← μ m + Δ: Nesterov's; with ζ = 1 and μ = 0, the mean of where workers got."""

    def __init__(self, me: Worker, lr: float, momentum: float) -> None:
        self._lr = lr
        self._momentum = momentum
        # Kept: a script's next loop over the data goes on with it.
        self._buffer = (
            me.kept.setdefault("outer momentum", torch.zeros_like(me.parameters.values)) if momentum else None
        )
        self.at = me.parameters.values
        """x: the global parameters. All workers take the same steps from the same point, so theirs are equal to the
        bit."""

    def take(self, difference: Tensor) -> Tensor:
        """One step along the mean difference Δ; returns where it leads."""
        if self._buffer is not None:
            self._buffer.mul_(self._momentum).add_(difference)
            difference = difference + self._momentum * self._buffer
        self.at = self.at - (difference if self._lr == 1 else self._lr * difference)
        return self.at


def check_outer_step(lr: float, momentum: float) -> None:
    """Raise if this cannot be an outer step."""
    positive(outer_lr=lr)
    not_negative(outer_momentum=momentum)
    if momentum >= 1:
        raise InputError(f"outer_momentum is {momentum}; it must be below 1, as in 0.9")


__all__ = ["OuterStep", "check_outer_step"]
