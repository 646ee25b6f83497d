"""A run in a few numbers, made from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import End, Evaluation, Event, Run
from ownpace.core.contract.target import Goal, TargetWatch


@dataclass(frozen=True)
class Staleness:
    """Updates between the parameters a gradient was computed at and those it was applied to."""

    mean: float
    max: int


@dataclass(frozen=True)
class UpdateSamples:
    """Samples of an update."""

    mean: float
    max: int | None
    """None: it was not recorded."""


@dataclass(frozen=True)
class ReplicaSpread:
    """How far a replica was from the global parameters when it took them over, relative to their norm."""

    mean: float
    max: float


@dataclass(frozen=True)
class Summary:
    """The first things to know about a run."""

    algorithm: str
    engine: str
    task: str
    model: str
    seed: int
    reason: str
    """`finished`, or what ended the run early."""
    seconds: float
    """Of the engine's time, until the budget was spent; what was in flight then is not counted any more."""
    samples: int
    updates: int
    samples_per_s: float
    share_of_limit: float
    """samples_per_s over the sum of what each worker would do alone and without a pause."""
    limit_samples_per_s: float
    accuracy: float | None
    best_accuracy: float | None
    loss: float | None
    """On the test data, at the end."""
    target: float | None
    time_to_target: float | None
    """Engine seconds until the first of two evaluations in a row that met the target; None if no two did."""
    staleness: Staleness
    update_samples: UpdateSamples
    busy: dict[str, float]
    """Of each worker, the share of its time spent on computing."""
    replicas_identical: bool | None = None
    """Whether all workers ended with the same bits, where the algorithm promises it and processes were compared."""
    spread: ReplicaSpread | None = None
    """How far replicas got apart in local steps; None where there are none."""
    code: str | None = None
    """Of a run that ended early: the code of its error, as in `diverged` or `interrupted`."""
    target_loss: float | None = None
    """Where a loss is to be reached and not an accuracy."""
    budget: int | None = None
    """The samples that the run was to learn from, if that was said."""
    worker_samples: dict[str, int] = field(default_factory=dict)
    """Of each worker, the samples that it computed, be they in an update or not: together they may exceed `samples`."""

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return asdict(self)


class SummaryBuilder:
    """Takes events one by one, as they happen or from a file, and sums them up at the end."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._end: End | None = None
        # Not all evaluations: there may be very many of them.
        self._last: Evaluation | None = None
        self._best_accuracy: float | None = None
        self._target = TargetWatch(Goal())

    def take(self, event: Event) -> None:
        """Look at one more event."""
        if isinstance(event, Evaluation):
            self._last = event
            self._note(event)
        elif isinstance(event, Run):
            self._run = event
            self._target = TargetWatch(Goal(event.target, event.target_loss))
        elif isinstance(event, End):
            self._end = event

    def summary(self) -> Summary:
        """The sums.

        Raises:
            InputError: The events have no beginning or no end.
        """
        run, end = self._run, self._end
        if run is None or end is None:
            missing = "first" if run is None else "last"
            raise InputError(f"the events lack their {missing} record; was the run cut off?")
        last, sums = self._last, end.sums
        # A run that ended at once has no rate, rather than an infinite one.
        rate = sums.samples / sums.seconds if sums.seconds > 0 else 0.0
        return Summary(
            algorithm=run.algorithm,
            engine=run.engine,
            task=run.task,
            model=run.model,
            seed=run.seed,
            reason=end.reason,
            seconds=sums.seconds,
            samples=sums.samples,
            updates=sums.updates,
            samples_per_s=rate,
            share_of_limit=rate / sums.limit_samples_per_s if rate and sums.limit_samples_per_s else 0.0,
            limit_samples_per_s=sums.limit_samples_per_s,
            accuracy=None if last is None else last.accuracy,
            best_accuracy=self._best_accuracy,
            loss=None if last is None else last.loss,
            target=run.target,
            time_to_target=self._target.reached_s,
            staleness=Staleness(sums.staleness_mean, sums.staleness_max),
            update_samples=UpdateSamples(sums.samples / max(1, sums.updates), sums.largest_update),
            busy={name: tally.compute_s / (sums.seconds or 1.0) for name, tally in sums.workers.items()},
            replicas_identical=sums.replicas_identical,
            spread=None if sums.spread_mean is None else ReplicaSpread(sums.spread_mean, sums.spread_max or 0.0),
            code=end.code,
            target_loss=run.target_loss,
            budget=run.samples,
            worker_samples={name: tally.samples for name, tally in sums.workers.items()},
        )

    def _note(self, event: Evaluation) -> None:
        best = self._best_accuracy
        if event.accuracy is not None and (best is None or event.accuracy > best):
            self._best_accuracy = event.accuracy
        self._target.take(event.t, event.accuracy, event.loss)


def summarize(events: Iterable[Event]) -> Summary:
    """A run in a few numbers."""
    builder = SummaryBuilder()
    for event in events:
        builder.take(event)
    return builder.summary()
