"""What becomes of a run's events and checkpoints on their way into its folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import DivergenceError, OwnpaceError
from ownpace.core.contract.events import Evaluation, Event, Run
from ownpace.core.contract.target import Target, TargetWatch
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Outcome
from ownpace.report.advice import advice
from ownpace.report.summary import Summary, SummaryBuilder
from ownpace.run.checkpoints import CheckpointWriter, samples_of
from ownpace.run.config import Config
from ownpace.run.folder import RunFolder
from ownpace.run.resume import Resumption, about_run
from ownpace.run.resumed_folder import ResumedFolder, recorded


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    summary: Summary
    wall_seconds: float
    error: OwnpaceError | None
    folder: Path | None
    checkpoint: Path | None = None
    """The latest that is whole, if the run wrote any or went on from one."""
    remark: str | None = None
    """What the algorithm has to say of this run, if anything."""
    warnings: tuple[str, ...] = ()
    """What makes the figures of this run mean less than they seem to."""

    def how_to_go_on(self) -> str | None:
        """What to do after a run that ended early, if there is a checkpoint to go on from."""
        # One that diverged would do so again.
        if self.error is None or isinstance(self.error, DivergenceError) or self.checkpoint is None:
            return None
        return go_on_from(self.checkpoint)

    def as_dict(self) -> dict[str, object]:
        """The summary and the wall-clock time, ready for JSON."""
        about = {"wall_seconds": self.wall_seconds, "warnings": list(self.warnings)}
        return {**self.summary.as_dict(), **about, "out": self.folder and str(self.folder)}


def go_on_from(checkpoint: Path) -> str:
    """What to do after a run that ended early."""
    run = checkpoint.parent.parent
    return f"go on from sample {samples_of(checkpoint):,} with: ownpace train --resume {shlex.quote(str(run))}"


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
        self._began = time.perf_counter()
        if resumption is not None:
            # Of the whole run, not only of its latest part.
            self._began -= resumption.wall_seconds
            for event in resumption.highlights:
                self._highlights.take(event)
                self._builder.take(event)
            if on_event is not None:
                for event in recorded(resumption):
                    on_event(event)

    def emit(self, event: Event) -> None:
        """Take one event."""
        if self._resumed is not None and isinstance(event, Run):
            return  # it stands at the beginning already
        # Counted and written before it is shown: if the handler raises, the record is not lost.
        self._highlights.take(event)
        self._builder.take(event)
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

    def result(self, outcome: Outcome, algorithm: Algorithm) -> Result:
        """What came out."""
        summary = self._builder.summary()
        if outcome.error is not None:
            # An error that the last record does not know: replicas that differ are found after it was written.
            summary = replace(summary, code=outcome.error.code)
        checkpoint = self._folder.checkpoint if self._writer is None else self._writer.last
        wall_seconds = time.perf_counter() - self._began
        remark = algorithm.remark(summary.updates)
        warnings = tuple(advice(summary, self._asked(algorithm, len(summary.busy))))
        return Result(summary, wall_seconds, outcome.error, self._folder.path, checkpoint, remark, warnings)

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
        self._watch = TargetWatch(Target())

    def take(self, event: Event) -> None:
        """Look at one more event."""
        if isinstance(event, Run):
            self._run = event
            self._watch = TargetWatch(Target(event.target, event.target_loss))
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
