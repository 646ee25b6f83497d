"""One worker of those that make local steps: where it is, what it has done and what it hands in."""

from __future__ import annotations

import math
from typing import NamedTuple

from tests.conformance.plain.draws import OwnData
from tests.conformance.plain.model import Sgd, gradient_sum, start
from tests.conformance.plain.setting import Setting
from torch import Tensor


class Handed(NamedTuple):
    """What a worker hands in."""

    value: Tensor
    """Its progress, or where it is."""
    samples: int
    now: float
    steps: int
    size: int
    """Of its steps, at last."""


class Alone:
    """One worker: where it is, how far its clock is, and the samples of the updates that it knows of."""

    def __init__(self, setting: Setting, rank: int, data: OwnData) -> None:
        self.at = start()
        self.now = 0.0
        self.heard = 0
        self.progress = start() * 0
        """Of the round so far: a sum of steps, not a difference of places."""
        self.off = start() * 0
        """What it was off the mean of all when this round began."""
        self.count = 0
        self.samples = 0
        self.needed: list[float] = []
        """Samples made while each sum so far was under way."""
        self.hides = False
        """Whether a sum was hidden so far."""
        self.late = False
        """Whether the last sum was not there after one step."""
        self.missed = 0.0
        """Samples that it could have made while it waited for the last sum."""
        self.size = setting.batch_size
        """Of its next steps."""
        self.is_new = False
        """Whether that is smaller than it was, and no sum has told of it yet."""
        self.rank, self._setting, self._data = rank, setting, data
        self._sgd = Sgd(setting)

    def step(self, size: int | None = None) -> None:
        setting = self._setting
        size = size or self.size
        inputs = self._data.take(self.rank, size)
        done = min(1.0, self.heard / setting.samples)
        scale = 0.5 * (1 + math.cos(math.pi * done)) if setting.cosine else 1.0
        after = self._sgd.moved(self.at, gradient_sum(self.at, inputs) / size, scale)
        self.progress = self.progress + (self.at - after)
        self.at = after
        self.count += 1
        self.samples += size
        self.now = setting.when_computed(self.rank, self.now, size)

    def hand_in(self) -> Handed:
        handed = Handed(self.progress, self.samples, self.now, self.count, self.size)
        self.progress, self.count, self.samples = start() * 0, 0, 0
        return handed

    def choose_size(self, told_of: int, fastest_s: float) -> None:
        """A sum has come that told of this size, and of how long the fastest computed for it.

        A step may take as long as the fastest one's of the whole batch size, or a quarter of its round. Sizes are whole
        sixteenths of that of the batch, stay where they are off by less than a tenth, and shrink by one choice at most
        before a sum tells of it.
        """
        if self.is_new:
            self.is_new = told_of != self.size
            return
        whole, paces = self._setting.batch_size, self._setting.paces
        grain = max(1, whole // 16)
        longest_s = max(whole / max(paces), fastest_s / 4)
        size = min(whole, max(1, round(paces[self.rank] * longest_s / grain) * grain))
        if abs(size - self.size) > 0.1 * self.size:
            self.is_new, self.size = size < self.size, size
