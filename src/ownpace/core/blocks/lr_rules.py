"""The learning rate of updates whose batch varies.

For an update of n samples where `reference` were expected, S = n / reference:

    constant   η
    linear     η · S
    sqrt       η · √S
    adascale   η · r,  r = (σ² + m²) / (σ²/S + m²), and the schedule goes on by r · reference samples
               (Johnson et al., 2020, arXiv 2007.05105), but never faster than the samples themselves, which are the
               budget. σ² is the variance of the mean gradient of `reference` samples,
               m² the squared norm of the true gradient; 1 ≤ r ≤ S for S ≥ 1.

With s² the variance of one sample's gradient (σ² = s² / reference), worker i's mean gradient g_i of n_i samples has
E‖g_i‖² = m² + s²/n_i, and the mean ḡ of all n samples has E‖ḡ‖² = m² + s²/n. So, over N workers,

    A = Σ_i n_i‖g_i‖² ≈ n m² + N s²,   B = n‖ḡ‖² ≈ n m² + s²,   s² ≈ (A − B)/(N − 1),   m² ≈ (B − s²)/n

A travels as a note along with the gradient: it costs a pass over it, and on a GPU a wait. Both estimates are smoothed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ownpace.core.contract.roles import Learner
from ownpace.core.contract.values import Gradient

LrRuleName = Literal["constant", "linear", "sqrt", "adascale"]
_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one update is to be made."""

    lr_scale: float = 1.0
    """Multiplies the learning rate."""
    advance: float | None = None
    """By how many samples the schedule goes on (None: by those of the update)."""


class LrRule:
    """The learning rate of updates whose batch varies. Every worker holds one; all see the same sums and agree."""

    def __init__(self, rule: LrRuleName, reference: int) -> None:
        self._rule = rule
        self._reference = reference
        self._variance = 0.0
        self._square = 0.0
        self._seen = 0
        self.latest = Scaling()
        """That of the latest update: the best guess for the next."""

    def note(self, gradient: Gradient) -> Gradient:
        """The gradient, with the note that the rule needs, if it needs one."""
        # Where only time is simulated, a gradient has no values that could be squared.
        if self._rule != "adascale" or gradient.total.is_meta:
            return gradient
        square = float(gradient.total.square().sum()) / max(1, gradient.samples)
        return gradient.noting(square=square)

    def step(self, learner: Learner, total: Gradient) -> None:
        """Make the update with this sum."""
        scaling = self.scaling(total)
        learner.step(total, lr_scale=scaling.lr_scale, advance=scaling.advance)

    def scaling(self, total: Gradient) -> Scaling:
        """How to make the update with this sum."""
        if not total.samples:
            return self.latest  # no update is made, so there is nothing to learn for the next
        scale = total.samples / self._reference
        if self._rule == "linear":
            self.latest = Scaling(scale)
        elif self._rule == "sqrt":
            self.latest = Scaling(math.sqrt(scale))
        elif self._rule == "adascale" and "square" in total.notes:
            self._measure(total)
            if self._seen:
                gain = self._gain(scale)
                self.latest = Scaling(gain, min(total.samples, gain * self._reference))
        return self.latest

    def _measure(self, total: Gradient) -> None:
        members = sum(part.samples > 0 for part in total.contributions)
        if members < 2:
            return  # one gradient alone does not show its noise
        a = total.notes["square"]
        b = float(total.total.square().sum()) / total.samples
        variance = (a - b) / (members - 1)
        square = (b - variance) / total.samples
        # The first ten estimates are averaged with equal weight; a fixed weight would let the first one linger.
        self._seen += 1
        weight = max(_SMOOTHING, 1 / self._seen)
        self._variance += weight * (variance - self._variance)
        self._square += weight * (square - self._square)

    def _gain(self, scale: float) -> float:
        # Estimates from few gradients can be negative; what they estimate cannot.
        variance, square = max(0.0, self._variance) / self._reference, max(0.0, self._square)
        if variance + square == 0:
            return 1.0
        return (variance + square) / (variance / scale + square)


__all__ = ["LrRule", "LrRuleName", "Scaling"]
