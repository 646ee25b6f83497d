"""How to learn where nothing else is said: what suits a task, of which each knows best itself."""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.learning.schedule import ScheduleShape

# What torch has for them; none of them needs momentum.
_LR_OF_OTHERS = {
    "adam": 0.001,
    "adamw": 0.001,
    "nadam": 0.002,
    "radam": 0.001,
    "adamax": 0.002,
    "adagrad": 0.01,
    "adadelta": 1.0,
    "rmsprop": 0.01,
    "rprop": 0.01,
    "asgd": 0.01,
}


@dataclass(frozen=True)
class Defaults:
    """What a run on a task takes where its description says nothing: settings with which every algorithm learns."""

    lr: float = 0.05
    """Of plain SGD."""
    momentum: float = 0.0
    schedule: ScheduleShape = "constant"
    epochs: float = 20
    target: float | None = None
    """A test accuracy that a run with these settings gets to, for comparisons to time."""
    target_loss: float | None = None
    """The same as a loss, where there is no accuracy."""

    def for_optimizer(self, name: str, momentum: float | None = None) -> tuple[float, float]:
        """Learning rate and momentum for an optimizer by its name.

        If a momentum is given, SGD's rate is that with which steps add up to the same.

        >>> Defaults(lr=0.2).for_optimizer("sgd", 0.9)
        (0.02, 0.9)
        """
        if name != "sgd":
            return _LR_OF_OTHERS.get(name, self.lr), momentum or 0.0
        if momentum is None or not 0 <= momentum < 1:
            return self.lr, self.momentum if momentum is None else momentum
        return float(f"{self.lr * (1 - momentum) / (1 - self.momentum):.6g}"), momentum
