"""Learning-rate schedules, indexed by samples: the one count that means the same at every pace and batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ownpace.core.contract.errors import InputError
from ownpace.core.settings import not_negative

ScheduleShape = Literal["constant", "cosine", "linear", "step"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The factor on the learning rate after a number of samples.

    >>> schedule = Schedule(shape="cosine", warmup_samples=100)
    >>> schedule.factor(50, total=1000), schedule.factor(1000, total=1000)
    (0.5, 0.0)
    """

    shape: ScheduleShape = "constant"
    warmup_samples: int = 0
    """The factor rises linearly from 0 to 1 over these."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """For `step`: the fractions of the run at which the rate falls."""
    gamma: float = 0.1
    """For `step`: what it is multiplied by there."""

    def __post_init__(self) -> None:
        not_negative(warmup_samples=self.warmup_samples, gamma=self.gamma)
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(f"milestones are {self.milestones}; they must rise")

    def factor(self, samples: float, total: int | None) -> float:
        """The factor after `samples` samples of `total` (None: the run's length is not known)."""
        if samples < self.warmup_samples:
            return samples / self.warmup_samples
        if self.shape == "constant" or total is None:
            return 1.0
        done = min(1.0, (samples - self.warmup_samples) / max(1, total - self.warmup_samples))
        match self.shape:
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * done))
            case "linear":
                return 1 - done
            case "step":
                return self.gamma ** sum(samples >= share * total for share in self.milestones)
