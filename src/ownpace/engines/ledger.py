"""The run in numbers, for both engines: sums of updates, evaluations, the target, divergence, the last record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import DivergenceError, InputError, OwnpaceError
from ownpace.core.contract.target import Goal, TargetWatch
from ownpace.core.learning.task import Score

_TINY = 1e-30


@dataclass(slots=True)
class UpdateTotals:
    """What one learner's updates add up to. Closed once the budget is spent: what follows was in flight by then."""

    updates: int = 0
    samples: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    t: float = 0.0
    """When the latest update was made; once closed, when the budget was spent."""
    closed: bool = False
    largest: int = 0
    """Samples of the largest update."""
    spreads: int = 0
    """How often it was measured how far a replica is from the others."""
    spread_sum: float = 0.0
    spread_max: float = 0.0

    def add(self, t: float, version: int, samples: int, staleness: int) -> None:
        """One more update; `samples` are those of all updates so far."""
        if not self.closed:
            if samples - self.samples > self.largest:
                self.largest = samples - self.samples
            self.updates, self.samples, self.t = version, samples, t
            self.staleness_sum += staleness
            if staleness > self.staleness_max:
                self.staleness_max = staleness

    def add_spread(self, replica: Tensor, mean: Tensor) -> None:
        """A replica that was on its own way is about to take over the global parameters, a mean of all."""
        if self.closed:
            return
        # On a GPU this waits for all that is under way: not to be asked for at every update there.
        spread = float((replica - mean).norm() / mean.norm().clamp_min(_TINY))
        if math.isfinite(spread):
            self.spreads += 1
            self.spread_sum += spread
            self.spread_max = max(self.spread_max, spread)

    def close(self, t: float) -> None:
        """The budget is spent at this time; only the first call counts."""
        if not self.closed:
            self.t = t
            self.closed = True


class EvaluationMarks:
    """After which numbers of samples the model is evaluated: at every multiple of `every`, once it has been passed."""

    def __init__(self, every: float, samples: int = 0) -> None:
        self._every = every
        # Of a run that goes on, those of before have been passed.
        self.next = (samples // every + 1) * every if samples else every
        """The next one."""

    def go_on_from(self, samples: int) -> None:
        """This many samples have been learnt from, and no evaluation of them is missing."""
        self.next = (samples // self._every + 1) * self._every

    def passed(self, samples: int) -> bool:
        """Whether the next mark has been passed; if so, the next one is the first after `samples`."""
        if samples < self.next:
            return False
        # From the samples, not from the mark: one update may pass several marks, which make one evaluation.
        self.next = (samples // self._every + 1) * self._every
        return True


class Ledger:
    """Takes scores and totals, and makes the records of them that every run ends with."""

    def __init__(self, emit: events.Emit, target: Goal | None = None, *, stop_at_target: bool = False) -> None:
        self._emit = emit
        self.watch = TargetWatch(target or Goal())
        self._stop_at_target = stop_at_target

    def evaluated(self, score: Score, t: float, samples: int, updates: int) -> bool:
        """Record an evaluation; returns whether the run may stop, because its target is reached.

        Raises:
            DivergenceError: The loss is not finite.
            InputError: The target is an accuracy, and the task has none.
        """
        target = self.watch.target.accuracy
        if target is not None and score.accuracy is None:
            raise InputError(f"target is {target}, an accuracy, but the task has none; use target_loss")
        loss = score.loss if math.isfinite(score.loss) else None
        self._emit(events.Evaluation(t, samples, updates, loss, score.accuracy))
        if loss is None:  # recorded before it is raised: the last evaluation shows what went wrong
            raise diverged("the test loss", score.loss, samples)
        return self.watch.take(t, score.accuracy, loss) and self._stop_at_target

    def end(self, t: float, error: OwnpaceError | None, sums: events.Sums) -> None:
        """Write the last record: the run has finished, or ended early because of this error."""
        if error is None:
            self._emit(events.End(t, "finished", sums))
        else:
            self._emit(events.End(t, str(error), sums, error.code))


def sums_of(
    totals: UpdateTotals,
    seconds: float,
    limit_samples_per_s: float,
    workers: Mapping[str, events.Tally],
    replicas_identical: bool | None = None,
) -> events.Sums:
    """The run in numbers."""
    return events.Sums(
        seconds=seconds,
        samples=totals.samples,
        updates=totals.updates,
        staleness_mean=totals.staleness_sum / max(1, totals.updates),
        staleness_max=totals.staleness_max,
        limit_samples_per_s=limit_samples_per_s,
        workers=workers,
        replicas_identical=replicas_identical,
        largest_update=totals.largest,
        spread_mean=totals.spread_sum / totals.spreads if totals.spreads else None,
        spread_max=totals.spread_max if totals.spreads else None,
    )


def diverged(what: str, value: float, samples: int) -> DivergenceError:
    """The error for a loss or a gradient that is no longer finite."""
    return DivergenceError(f"{what} is {value} at sample {samples}: training diverged; try a smaller lr")
