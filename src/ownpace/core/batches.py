"""What follows from a batch that varies: how large micro-batches should be, and what the learning rate should be.

Learning rate, for an update of n samples where `reference` were expected, S = n / reference:

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

A travels as a note along with the gradient: it costs a pass over it, and on a card a wait. Both estimates are smoothed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from ownpace.core.algorithm import Algorithm
from ownpace.core.asking import Learner, Worker
from ownpace.core.errors import InputError
from ownpace.core.values import Gradient, Share

Rule = Literal["constant", "linear", "sqrt", "adascale"]
Sizing = Literal["fixed", "equal-time"]
GRAINS = 16
"""Into how many grains the largest micro-batch is divided."""
_PATIENCE = 20
"""Sums until a size that did not want to shrink is tried again."""
_MOST_OF_THE_TIME = 0.8
_SMOOTHING = 0.1
_TOLERANCE = 0.1
"""By what share a size may be off before it is changed."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one update is to be made."""

    lr_scale: float = 1.0
    advance: float | None = None


class LrRule:
    """The learning rate of updates whose batch varies. Every worker keeps one, and all of them agree."""

    def __init__(self, rule: Rule, reference: int) -> None:
        self._rule = rule
        self._reference = reference
        self._variance = 0.0
        self._square = 0.0
        self._seen = 0
        self.latest = Scaling()
        """Of the latest update: the best guess for the next."""

    def note(self, gradient: Gradient) -> Gradient:
        """The gradient with what has to travel along, where the rule needs something."""
        if self._rule != "adascale" or gradient.total.is_meta:
            return gradient
        square = float(gradient.total.square().sum()) / max(1, gradient.samples)
        return gradient.noting(torch.tensor([square], dtype=torch.float64))

    def step(self, learner: Learner, total: Gradient) -> None:
        """Make the update with this sum."""
        learner.step(total, **asdict(self.scaling(total)))

    def scaling(self, total: Gradient) -> Scaling:
        """How to make the update with this sum."""
        scale = total.samples / self._reference
        if self._rule == "linear":
            self.latest = Scaling(scale)
        elif self._rule == "sqrt":
            self.latest = Scaling(math.sqrt(scale))
        elif self._rule == "adascale" and total.notes is not None and total.samples:
            self._measure(total)
            if self._seen:
                gain = self._gain(scale)
                self.latest = Scaling(gain, min(total.samples, gain * self._reference))
        return self.latest

    def _measure(self, total: Gradient) -> None:
        assert total.notes is not None
        members = sum(share.samples > 0 for share in total.shares)
        if members < 2:
            return  # one gradient alone does not show its noise
        a = float(total.notes[0])
        b = float(total.total.square().sum()) / total.samples
        variance = (a - b) / (members - 1)
        square = (b - variance) / total.samples
        self._seen += 1
        weight = max(_SMOOTHING, 1 / self._seen)
        self._variance += weight * (variance - self._variance)
        self._square += weight * (square - self._square)

    def _gain(self, scale: float) -> float:
        variance, square = max(0.0, self._variance) / self._reference, max(0.0, self._square)
        if variance + square == 0:
            return 1.0
        return (variance + square) / (variance / scale + square)


class Paces:
    """Each worker's measured pace, out of the sums that all of them see: all keep the same."""

    def __init__(self, num_workers: int, smoothing: float) -> None:
        self._smoothing = smoothing
        self.samples_per_s = [0.0] * num_workers
        """Of each worker, by rank; 0 as long as nothing is known."""

    def take(self, shares: Sequence[Share]) -> None:
        """Learn from what each member of a sum contributed, in which time."""
        for i, share in enumerate(shares):
            old, new = self.samples_per_s[i], share.pace
            self.samples_per_s[i] = old + self._smoothing * (new - old) if old and new else old or new

    @property
    def known(self) -> bool:
        """Whether there is a measurement of everybody."""
        return all(self.samples_per_s)


class MicroBatch:
    """How large one worker's micro-batches are: as given, or so that everybody's take about equally long.

    Then the fastest worker's are of `largest` samples, which take a time T, and the others' are smaller: what takes T,
    or most of the time between two sums, if that is longer. A size is kept until it is off by a tenth, and comes in
    grains, since cards tune their kernels for every new one. And it does not shrink where that saves no time: if
    beginning a micro-batch takes long, small ones are a waste. So each time that a size has shrunk, the next sum tells
    what became of the pace: if it has lost more than a third of what the size has, that is undone.
    """

    def __init__(self, rank: int, num_workers: int, largest: int, sizing: Sizing, smoothing: float) -> None:
        self._rank = rank
        self._largest = largest
        self._fixed = sizing == "fixed"
        self._paces = Paces(num_workers, smoothing)
        self._size = largest
        self._given: deque[int] = deque()
        self._before: tuple[int, float] | None = None
        self._patience = 0

    @property
    def share(self) -> float:
        """This worker's pace as a share of all workers' paces."""
        paces = self._paces.samples_per_s
        return paces[self._rank] / sum(paces) if self._paces.known else 1 / len(paces)

    def next(self) -> int:
        """The size for the next batch. In the order of these calls, `take` is told what came of them."""
        self._given.append(self._size)
        return self._size

    def take(self, shares: Sequence[Share]) -> None:
        """Learn from the sum of a batch: what each worker contributed, in which time."""
        size, pace = self._given.popleft(), shares[self._rank].pace
        self._paces.take(shares)
        if self._fixed or not self._paces.known or not pace:
            return
        if self._before is not None:
            if size == self._size:
                self._look_back(pace)
            return
        self._patience = max(0, self._patience - 1)
        wish = self._wish(shares)
        if not differs(wish, self._size) or (wish < self._size and self._patience):
            return
        if wish < self._size:
            self._before = self._size, pace
        self._size = wish

    def _wish(self, shares: Sequence[Share]) -> int:
        paces = self._paces.samples_per_s
        fastest = paces.index(max(paces))
        seconds = max(self._largest / paces[fastest], _MOST_OF_THE_TIME * shares[fastest].seconds)
        grain = max(1, self._largest // GRAINS)
        return min(self._largest, max(1, round(paces[self._rank] * seconds / grain) * grain))

    def _look_back(self, pace: float) -> None:
        """A size has shrunk, and this is the pace with it: undo it, unless that saved time."""
        assert self._before is not None
        (size, before), self._before = self._before, None
        if pace < before * (1 - (1 - self._size / size) / 3):
            self._size = size
            self._patience = _PATIENCE


@dataclass(frozen=True, kw_only=True)
class VaryingBatch(Algorithm):
    """The settings of algorithms whose updates have as many samples as came together."""

    lr_rule: Rule = "constant"
    """How the learning rate follows the samples of an update: constant, linear, sqrt or adascale."""
    micro: Sizing = "fixed"
    """Micro-batches of the same size, or of sizes that take everybody equally long."""
    smoothing: float = 0.3
    """Weight of the newest measurement in a worker's pace, for equal-time."""

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def rule_of(self, me: Worker) -> LrRule:
        """The learning rates of my updates."""
        return LrRule(self.lr_rule, me.batch_size * len(me.workers))

    def micro_of(self, me: Worker) -> MicroBatch:
        """The sizes of my micro-batches."""
        return MicroBatch(me.rank, len(me.workers), me.micro_batch, self.micro, self.smoothing)


def differs(new: float, old: float, tolerance: float = _TOLERANCE) -> bool:
    """Whether a size or a share has changed by so much that it is worth acting on."""
    return abs(new - old) > tolerance * old


def check_smoothing(smoothing: float) -> None:
    """Raise if this is not the weight of a newest measurement."""
    if not 0 < smoothing <= 1:
        raise InputError(f"smoothing is {smoothing}; it must be above 0 and at most 1")


__all__ = [
    "GRAINS",
    "LrRule",
    "MicroBatch",
    "Paces",
    "Rule",
    "Scaling",
    "Sizing",
    "VaryingBatch",
    "check_smoothing",
    "differs",
]
