"""One run of a plan: a configuration tried in virtual time, given up as soon as enough is known of it.

A trial goes to another process as JSON and its outcome comes back as JSON, so both hold numbers and names only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch

from ownpace.core.contract.errors import Interrupted, OwnpaceError
from ownpace.core.contract.events import Evaluation, Event
from ownpace.core.learning.dataset_samples import samples_to_test
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.engines import ENGINES
from ownpace.engines.job import ProgressReport
from ownpace.fleet import Fleet
from ownpace.planning.cost import Cost, CostWatch, but
from ownpace.planning.noise import NoiseScale, measured_noise
from ownpace.planning.timing import Timing, TimingWatch
from ownpace.run import Config

IN_A_ROW = 2
"""A level is reached when this many evaluations in a row are there: no win by one lucky crossing."""


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation."""

    seconds: float
    samples: int
    updates: int
    score: float
    """The accuracy, or where a task has none, the loss with a minus: more is better."""
    loss: float


@dataclass(frozen=True)
class Trial:
    """What to try, and what to find out."""

    base: Config
    """All but what follows; many trials share it."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of it that are other in this trial: names and numbers."""
    level: float | None = None
    """The score at which the run may end, once it is reached."""
    num_test: int | None = None
    """Test with this many samples at most (None: with all)."""
    by_loss: bool = False
    """Whether the loss is the score, even where there is an accuracy."""
    noise: bool = False
    """Whether to measure the gradients' noise at the end."""
    seconds: float | None = None
    """By the clock, from its first update on, after which it ends (None: it may take as long as it does)."""

    @property
    def config(self) -> Config:
        """What to run."""
        make: Callable[..., Config] = replace
        return make(self.base, **self.changes)


@dataclass(frozen=True)
class Tried:
    """What came out."""

    points: tuple[CurvePoint, ...]
    reason: str
    """`finished`, `reached`, `cut` where the time was up, or the code of the error that ended it: `diverged`, say."""
    message: str
    timing: Timing
    noise: NoiseScale | None = None
    time: Cost | None = None
    """By the clock, next to whatever else runs here."""
    work: Cost | None = None
    """By the processor's time."""

    @property
    def samples(self) -> int:
        """That it got to."""
        return self.points[-1].samples if self.points else 0

    @property
    def is_cut(self) -> bool:
        """Whether it ended because the time was up."""
        return self.reason == "cut"

    def reached_s(self, level: float) -> float | None:
        """When the score was there, with all evaluations that make sure of it; None: never."""
        found = reached(self.points, level)
        return None if found is None else found.seconds

    @property
    def start(self) -> float:
        """The score before the first update."""
        return self.points[0].score if self.points else -math.inf

    @property
    def best(self) -> float:
        """The best score that evaluations in a row agree on."""
        scores = [point.score for point in self.points]
        rows = [scores[end - IN_A_ROW : end] for end in range(IN_A_ROW, len(scores) + 1)]
        return max((min(row) for row in rows), default=-math.inf)

    @property
    def last(self) -> tuple[float, float]:
        """The mean score of the last evaluations, and then the loss with a minus: more is better."""
        if self.reason == "diverged" or not self.points:
            return -math.inf, -math.inf
        last = self.points[-IN_A_ROW:]
        return sum(p.score for p in last) / len(last), -sum(p.loss for p in last) / len(last)

    def to_json(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Tried:
        """The other way round."""
        # What `to_json` wrote: whole numbers are whole here, too.
        points = tuple(CurvePoint(**point) for point in cast(Sequence[dict[str, Any]], content["points"]))
        timing = Timing(**cast(dict[str, Any], content["timing"]))
        made: dict[str, Any] = {
            name: None if content[name] is None else cls_(**cast(dict[str, Any], content[name]))
            for name, cls_ in (("noise", NoiseScale), ("time", Cost), ("work", Cost))
        }
        return cls(points, str(content["reason"]), str(content["message"]), timing, **made)


def reached(points: Sequence[CurvePoint], level: float) -> CurvePoint | None:
    """The first of the evaluations in a row that are at a level.

    >>> points = [CurvePoint(t, 0, 0, score, 0.0) for t, score in enumerate([0.1, 0.9, 0.7, 0.8, 0.9])]
    >>> reached(points, 0.8).seconds
    3
    """
    row = 0
    for index, point in enumerate(points):
        row = row + 1 if point.score >= level else 0
        if row == IN_A_ROW:
            return points[index - IN_A_ROW + 1]
    return None


def try_out(trial: Trial, deadline: float | None = None) -> Tried:
    """Carry out a trial. An error of the run itself is part of the outcome; bad input raises.

    Args:
        trial: What to try.
        deadline: On the monotonic clock, which all processes share; then it ends with what is known.
    """
    job = trial.config.job()
    if trial.num_test is not None:
        job = replace(job, task=with_fewer_tests(job.task, trial.num_test))
    by_clock = CostWatch(job.task, time.monotonic)
    by_work = CostWatch(by_clock.task, time.process_time)
    points: list[CurvePoint] = []
    watch = TimingWatch(job)
    limits_s = [] if deadline is None else [deadline]

    def take(event: Event) -> None:
        watch.take(event)
        if isinstance(event, Evaluation):
            points.append(_point(event, by_loss=trial.by_loss))
            if trial.level is not None and reached(points, trial.level) is not None:
                raise Interrupted(_ENOUGH)

    def on_progress(report: ProgressReport) -> None:
        if report.samples and trial.seconds is not None and not by_clock.is_under_way:
            limits_s.append(time.monotonic() + trial.seconds)
        by_clock.mark(report.samples)
        by_work.mark(report.samples)
        if limits_s and time.monotonic() >= min(limits_s):
            raise Interrupted(_CUT)

    outcome = ENGINES["virtual"](replace(job, task=by_work.task), take, on_progress)
    noise = None
    if trial.noise and outcome.model:
        noise = measured_noise(job.task, outcome.model, job.batch_size, seed=job.seed)
    reason, message = _reason(outcome.error)
    return Tried(tuple(points), reason, message, watch.timing(), noise, by_clock.cost(), by_work.cost())


_ENOUGH, _CUT = "known well enough", "the time was up"


def _reason(error: OwnpaceError | None) -> tuple[str, str]:
    if error is None:
        return "finished", ""
    if isinstance(error, Interrupted):
        if str(error) not in (_ENOUGH, _CUT):
            raise KeyboardInterrupt  # the user's, which the engine has made an outcome of
        return "reached" if str(error) == _ENOUGH else "cut", ""
    return error.code, str(error)


def _point(event: Evaluation, *, by_loss: bool) -> CurvePoint:
    loss = math.inf if event.loss is None else event.loss
    score = -loss if by_loss or event.accuracy is None else event.accuracy
    return CurvePoint(event.t, event.samples, event.updates, score, loss)


def for_trials(config: Config, fleet: Fleet) -> Config:
    """What all trials share: nothing is written, and the rate stays where it is."""
    return replace(
        config,
        engine="virtual",
        fleet=fleet,
        samples=1,
        epochs=None,
        seconds=None,
        target=None,
        target_loss=None,
        stop_at_target=False,
        eval_every=None,
        evaluate="during",
        timing_only=False,
        detail=False,
        schedule="constant",
        warmup_samples=0,
        checkpoint_every=None,
        log_files=False,
        max_workers=None,
        min_workers=1,
    )


def as_asked(base: Config, config: Config) -> Config:
    """What trials share, with the length and the target that were asked for, so that bad ones are found at once."""
    one = 1 if config.samples is None and config.epochs is None else config.samples
    return replace(base, samples=one, epochs=config.epochs, target=config.target, target_loss=config.target_loss)


def with_fewer_tests(task: Task, most: int) -> Task:
    """The same task, tested with at most this many of its test samples, always the same: evaluations are many here."""
    every = samples_to_test(task)
    if len(every) <= most:
        return task
    # Evenly spread over all of them: files are often sorted.
    fewer = TensorSamples(*every.pick(torch.linspace(0, len(every) - 1, most).round().long()))
    task.train_samples()  # read now, so that all copies share them
    return but(task, test_samples=lambda self: fewer)
