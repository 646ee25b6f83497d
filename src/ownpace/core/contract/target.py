"""When a run has reached its target: the one rule, for engines that stop there and for reports that time it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """What is to be reached on the test data: at least this accuracy, or at most this loss; of one run, one of them."""

    accuracy: float | None = None
    loss: float | None = None

    def is_met_by(self, accuracy: float | None, loss: float | None) -> bool:
        """Whether an evaluation is good enough."""
        if self.accuracy is not None:
            return accuracy is not None and accuracy >= self.accuracy
        return self.loss is not None and loss is not None and loss <= self.loss


class TargetWatch:
    """Takes evaluations, and says when the target was reached: at the first of two in a row that meet it.

    One alone is not enough: a noisy one meets it by chance, and the next does not.

    >>> watch = TargetWatch(Goal(accuracy=0.9))
    >>> [watch.take(t, score, None) for t, score in enumerate((0.8, 0.91, 0.89, 0.92, 0.9, 0.5))]
    [False, False, False, False, True, True]
    >>> watch.reached_s
    3
    """

    def __init__(self, target: Goal, met_s: float | None = None) -> None:
        """`met_s`: of a run that goes on, when its last evaluation was made, if that met the target."""
        self.target = target
        self.met_s = met_s
        """When the last evaluation was made, if it met the target."""
        self.reached_s: float | None = None
        """When the target was reached, once two evaluations say so."""

    def take(self, t: float, accuracy: float | None, loss: float | None) -> bool:
        """Take the next evaluation; returns whether the target has been reached."""
        is_met = self.target.is_met_by(accuracy, loss)
        if is_met and self.met_s is not None and self.reached_s is None:
            self.reached_s = self.met_s
        self.met_s = t if is_met else None
        return self.reached_s is not None
