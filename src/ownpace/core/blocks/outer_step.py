"""The step that all workers take together, with how far each has got alone.

    Δ = Σ_i n_i P_i / Σ_i n_i           P_i: how far worker i got in a round, with s_i steps and n_i samples
    m ← μ m + Δ;  x ← x − ζ (Δ + μ m)

A mean is no longer than what each worker did, while one worker alone with all their samples would have made M times as
many steps, M = (Σ n_i)² / Σ n_i²: the number of workers, if all are alike. Where rounds are short, the learning rate
makes up for that: it is one for a batch of all workers' samples. Where workers are alone for many steps, it has to be
one for their own small batches. There momentum makes up for it, as progress that goes on in the same direction becomes
1/(1 − μ) times as long: √M times, as it is usual for a batch M times as large, where noise matters.

    μ = max(0, 1 − κ/s) · (1 − 1/√M)    s = Σ_i n_i s_i / Σ_i n_i; κ = 4: up to this many steps, a round is short

All workers see the same sums, so all have the same μ. One worker alone has M = 1, and no momentum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.settings import not_negative, positive

_SHORT = 4
"""κ: in rounds of up to this many steps, workers stay close to each other, and the rate is that of all together."""
_KEPT = "outer momentum"


class OuterStep:
    """x ← x − ζ (Δ + μ m) with m ← μ m + Δ: Nesterov's; with ζ = 1 and μ = 0, the mean of where workers got."""

    def __init__(self, me: Worker, lr: float, momentum: float | None) -> None:
        """`momentum`: None is what follows from each sum, whose parts must then be `noted`."""
        self._lr = lr
        self._momentum = momentum
        self._me = me

    @staticmethod
    def noted(part: Gradient, steps: int) -> Gradient:
        """This worker's part in a sum, with the number of steps that it took."""
        return part.noting(**part.notes, steps=float(steps * part.samples))

    def take(self, start: Tensor, total: Gradient) -> Tensor:
        """One step from `start` along the mean of a sum of differences, Δ; returns where it leads.

        All workers take it from the same start with the same sum, so they get to the same bits.
        """
        if not total.samples:
            return start  # no update: momentum must not go on, either
        difference = total.mean
        momentum = _made_up_for(total) if self._momentum is None else self._momentum
        if momentum:
            # Kept: a script's next loop over the data goes on with it.
            buffer = self._me.kept.setdefault(_KEPT, torch.zeros_like(start))
            buffer.mul_(momentum).add_(difference)
            difference = difference + momentum * buffer
        else:
            self._me.kept.pop(_KEPT, None)  # m is 0 then: short rounds need no memory for it
        return start - (difference if self._lr == 1 else self._lr * difference)


def _made_up_for(total: Gradient) -> float:
    """μ, by what went into a sum: the momentum that makes up for what its mean is too short."""
    samples = [part.samples for part in total.contributions]
    workers = sum(samples) ** 2 / sum(n * n for n in samples)
    steps = total.notes["steps"] / sum(samples)
    return max(0.0, 1 - _SHORT / steps) * (1 - 1 / math.sqrt(workers))


def check_outer_step(lr: float, momentum: float | None) -> None:
    """Raise if this cannot be an outer step."""
    positive(outer_lr=lr)
    not_negative(outer_momentum=momentum)
    if momentum is not None and momentum >= 1:
        raise InputError(f"outer_momentum is {momentum}; it must be below 1, as in 0.9")


__all__ = ["OuterStep", "check_outer_step"]
