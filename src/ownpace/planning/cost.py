"""What a sample costs, to learn from and to be tested with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import nn

from ownpace.core.learning.task import Samples, Score, Task

_LEAST_S = 1e-9
"""Of a sample: a clock may be too coarse to see it."""


@dataclass(frozen=True)
class Cost:
    """Of a sample, in seconds."""

    train_s: float
    test_s: float


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Of several runs at once, each in a process of its own."""
    return Cost(fmean(cost.train_s for cost in costs), fmean(cost.test_s for cost in costs))


@dataclass(frozen=True)
class _Mark:
    samples: int
    time_s: float
    testing_s: float


class CostWatch:
    """Looks at one run by one clock. What comes before the first update does not count, if there are others: the first
    gradients of a process take many times as long as all that follow.
    """

    def __init__(self, task: Task, clock: Callable[[], float]) -> None:
        self.task = but(task, score=self._score)
        """To be run in place of the other, so that its evaluations are seen."""
        self._score_of = type(task).score
        self._clock = clock
        self._testing_s = 0.0
        self._test_s = 0.0
        self._marks: list[_Mark] = []

    def _score(self, task: Task, model: nn.Module, samples: Samples, *more: Any) -> Score:
        began = self._clock()
        scored = self._score_of(task, model, samples, *more)
        took = self._clock() - began
        self._testing_s += took
        each = took / max(1, len(samples))
        self._test_s = min(self._test_s or each, each)
        self.mark(0)
        return scored

    @property
    def is_under_way(self) -> bool:
        """Whether there was an update."""
        return len(self._marks) > 1

    def mark(self, samples: int) -> None:
        """The run has got so far."""
        if not self._marks or samples > self._marks[-1].samples:
            self._marks.append(_Mark(samples, self._clock(), self._testing_s))

    def cost(self) -> Cost | None:
        """Of this run; None: it never made an update."""
        if not self.is_under_way:
            return None
        first, last = self._marks[1 if len(self._marks) > 2 else 0], self._marks[-1]
        spent_s = last.time_s - first.time_s - (last.testing_s - first.testing_s)
        return Cost(max(_LEAST_S, spent_s / (last.samples - first.samples)), max(_LEAST_S, self._test_s))


def but(task: Task, **methods: Callable[..., object]) -> Task:
    """The same task with other methods."""
    # A copy of a subclass, made without calling __init__: whatever else the task says of itself stays.
    twin = copy.copy(task)
    named = {name: _method(function) for name, function in methods.items()}
    object.__setattr__(twin, "__class__", type(type(task).__name__, (type(task),), named))
    return twin


def _method(function: Callable[..., object]) -> Callable[..., object]:
    return lambda self, *given, **named: function(self, *given, **named)
