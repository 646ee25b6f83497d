"""What becomes of a run's events and checkpoints on their way into its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Evaluation, Event, Run
from ownpace.core.contract.target import Goal, TargetWatch
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Job, Outcome
from ownpace.report.advice import advice
from ownpace.report.outline import RunOutline
from ownpace.report.summary import SummaryBuilder
from ownpace.run.checkpoints import CheckpointWriter
from ownpace.run.config import Config
from ownpace.run.folder import RunFolder
from ownpace.run.history import History
from ownpace.run.result import Result, model_of
from ownpace.run.resume import Resumption, about_run
from ownpace.run.resumed_folder import ResumedFolder, recorded

__all__ = ["Highlights", "Recording", "Result"]


class Recording:
    """Counts, writes and shows a run's events as they come, and hands its checkpoints on to be written."""

    def __init__(
        self,
        folder: RunFolder | ResumedFolder,
        config: Config,
        writer: CheckpointWriter | None,
        resumption: Resumption | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._writer = writer
        self._resumed = resumption
        self._on_event = on_event
        self._highlights = Highlights()
        self._builder = SummaryBuilder()
        self._history = History()
        self._outline = RunOutline()
        self._began = time.perf_counter()
        if resumption is not None:
            # Of the whole run, not only of its latest part.
            self._began -= resumption.wall_seconds
            for event in resumption.highlights:
                self._highlights.take(event)
                self._builder.take(event)
            for event in recorded(resumption):
                self._history.take(event)
                self._outline.take(event)
                if on_event is not None:
                    on_event(event)

    def emit(self, event: Event) -> None:
        """Take one event."""
        if self._resumed is not None and isinstance(event, Run):
            return  # it stands at the beginning already
        # Counted and written before it is shown: if the handler raises, the record is not lost.
        self._highlights.take(event)
        self._builder.take(event)
        self._history.take(event)
        self._outline.take(event)
        self._folder.write_event(event)
        if self._on_event is not None:
            self._on_event(event)

    def on_checkpoint(self, state: PlainState) -> None:
        """Take the state of the run between two generations."""
        if self._writer is None:
            return  # another rank writes it
        # The position first, which writes what waits: whoever goes on from here finds what came before.
        position = self._folder.position()
        wall_seconds = time.perf_counter() - self._began
        about = about_run(self._config, position, self._highlights.events(), wall_seconds)
        self._writer.take(_samples(state), state, about)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *details: object) -> None:
        """Wait until the last checkpoint is written."""
        if self._writer is not None:
            self._writer.close()

    def result(self, outcome: Outcome, job: Job) -> Result:
        """What came out."""
        # The budget of now: the first record has the one that the run was begun with, before it was resumed.
        summary = replace(self._builder.summary(), budget=job.samples)
        if outcome.error is not None:
            # An error that the last record does not know: replicas that differ are found after it was written.
            summary = replace(summary, code=outcome.error.code)
        checkpoint = self._folder.checkpoint if self._writer is None else self._writer.last
        wall_seconds = time.perf_counter() - self._began
        return Result(
            summary,
            wall_seconds,
            outcome.error,
            self._folder.path,
            checkpoint,
            job.algorithm.remark(summary.updates),
            tuple(advice(summary, self._asked(job.algorithm, len(summary.busy)))),
            self._history,
            self._outline,
            partial(model_of, job.task, outcome.model),
        )

    def _asked(self, algorithm: Algorithm, num_workers: int) -> int | None:
        """The samples of an update that were asked for, where there may be more of them and no bound was lifted."""
        if not isinstance(algorithm, VaryingBatch):
            return None
        asked = algorithm.target_batch or self._config.batch_size * num_workers
        return max(asked, (algorithm.max_batch or 0) // 2)


def _samples(state: PlainState) -> int:
    """How far a run is: as far as its servers, or the worker that has made most updates."""
    servers, workers = state.get("servers"), state["workers"]
    assert isinstance(workers, Mapping)
    learners = servers if isinstance(servers, Sequence) and servers else workers.values()
    return max(int(learner["counts"]["samples"]) for learner in learners)


class Highlights:
    """The events that a run's summary is made of: few, so that each checkpoint can hold them.

    Replayed, they give the same summary: beside an evaluation that may meet the target stands its neighbour that does
    not, so that no two seem to be in a row that are not.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._best: list[Evaluation] = []
        """The best, and the one right after it."""
        self._latest: list[Evaluation] = []
        """The last three."""
        self._reaching: list[Evaluation] = []
        """The two that reached the target, after the one before them."""
        self._watch = TargetWatch(Goal())

    def take(self, event: Event) -> None:
        """Look at one more event."""
        if isinstance(event, Run):
            self._run = event
            self._watch = TargetWatch(Goal(event.target, event.target_loss))
        elif isinstance(event, Evaluation):
            self._latest = [*self._latest[-2:], event]
            if event.accuracy is not None and (not self._best or event.accuracy > (self._best[0].accuracy or 0.0)):
                self._best = [event]
            elif len(self._best) == 1:
                self._best.append(event)
            if self._watch.take(event.t, event.accuracy, event.loss) and not self._reaching:
                self._reaching = self._latest

    def events(self) -> list[Event]:
        """Those events, in their order."""
        by_time = {(each.t, each.samples): each for each in (*self._best, *self._reaching, *self._latest[-2:])}
        evaluations = [by_time[when] for when in sorted(by_time)]
        return [*([] if self._run is None else [self._run]), *evaluations]
