"""Where a run stands, from its folder alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import EVENTS, read_events
from ownpace.core.contract.events import Evaluation, Generation, Update
from ownpace.core.learning.state_file import read_state
from ownpace.report.summary import Summary, SummaryBuilder
from ownpace.run.checkpoints import Checkpoints, samples_of
from ownpace.run.config import CONFIG
from ownpace.run.saved import label, saved_content, saved_fleet


@dataclass(frozen=True)
class CheckpointFile:
    """One of a run's checkpoints."""

    samples: int
    path: str
    nbytes: int
    problem: str | None
    """Why it cannot be read; None: it is whole."""


@dataclass(frozen=True)
class RunStanding:
    """Where a run stands."""

    run: str
    algorithm: str
    task: str
    engine: str | None
    workers: int | None
    budget: int | None
    """Samples it is to train, if that is its budget."""
    samples: int
    """The last that its records know of."""
    summary: Summary | None
    """None: there is no last record. It is still running, or was cut off."""
    checkpoints: list[CheckpointFile]
    """The newest first."""

    @property
    def can_go_on(self) -> bool:
        """Whether there is a checkpoint to go on from, and something left to do."""
        is_done = self.summary is not None and self.summary.reason == "finished"
        return not is_done and any(each.problem is None for each in self.checkpoints)

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return asdict(self)


def standing_of(run: Path) -> RunStanding:
    """Look at a run's folder.

    Raises:
        InputError: It holds no run.
    """
    if not (run / CONFIG).is_file():
        raise InputError(f"{run} is not the folder of a run; give one that has a {CONFIG}")
    fields = saved_content(run / CONFIG)
    samples, summary = _records(run / EVENTS)
    budget, engine, fleet = fields.get("samples"), fields.get("engine"), saved_fleet(fields.get("fleet"))
    return RunStanding(
        run=str(run),
        algorithm=_name(fields.get("algorithm")),
        task=_name(fields.get("task")),
        engine=engine if isinstance(engine, str) else None,
        workers=None if fleet is None else len(fleet.workers),
        budget=budget if isinstance(budget, int) else None,
        samples=samples,
        summary=summary,
        checkpoints=[_looked_at(path) for path in Checkpoints(run).newest_first()],
    )


def _name(saved: object) -> str:
    return label(saved) if isinstance(saved, str) else "an object of the user's own"


def _records(path: Path) -> tuple[int, Summary | None]:
    """The last sample that the records know of, and what they sum up to if they are complete."""
    samples, builder = 0, SummaryBuilder()
    try:
        for event in read_events(path):
            builder.take(event)
            if isinstance(event, Update):
                samples = max(samples, event.total_samples)
            elif isinstance(event, Evaluation | Generation):
                samples = max(samples, event.samples)
        return samples, builder.summary()
    except InputError:  # the last line is cut off, or the last record is not there
        return samples, None


def _looked_at(path: Path) -> CheckpointFile:
    try:
        read_state(path)
    except InputError as error:
        problem: str | None = str(error).removeprefix(f"{path} cannot be read as a checkpoint: ")
    else:
        problem = None
    return CheckpointFile(samples_of(path), str(path), path.stat().st_size, problem)
