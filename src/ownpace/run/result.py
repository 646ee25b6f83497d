"""What came out of a run, in the hand: its model, how it went, a table, a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ownpace.core.contract.errors import DivergenceError, InputError, OwnpaceError
from ownpace.core.contract.event_file import EVENTS, read_events
from ownpace.core.contract.events import Event
from ownpace.core.learning.task import Task
from ownpace.report.outline import RunOutline
from ownpace.report.shown import as_figure, as_html, as_text
from ownpace.report.summary import Summary, SummaryBuilder
from ownpace.run.checkpoints import go_on_from
from ownpace.run.config import Config
from ownpace.run.history import History
from ownpace.run.names import task_of
from ownpace.run.place import MODEL, SUMMARY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, object]]


def _no_model() -> nn.Module:
    raise InputError("the model of this run is with rank 0; ask there")


@dataclass(frozen=True, repr=False)
class Result:
    """What came out of a run."""

    summary: Summary
    """Samples per second, accuracy, staleness, how busy each worker was … of the whole run."""
    wall_seconds: float
    """How long it took, whatever the engine's clock says."""
    error: OwnpaceError | None
    """What ended it early, if anything did."""
    folder: Path | None
    """Where its files are (None: it was run without)."""
    checkpoint: Path | None = None
    """The latest that is whole, if the run wrote any or went on from one."""
    remark: str | None = None
    """What the algorithm has to say of this run, if anything."""
    warnings: tuple[str, ...] = ()
    """What makes the figures of this run mean less than they seem to."""
    history: History = field(default_factory=History, compare=False)
    """A row for each evaluation: `time`, `samples`, `updates`, `loss`, `accuracy`."""
    outline: RunOutline = field(default_factory=RunOutline, compare=False)
    """What a figure shows of it."""
    _make_model: Callable[[], nn.Module] = field(default=_no_model, compare=False)

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, with its weights.

        Raises:
            InputError: There is none: only time was simulated, or another rank has it.
        """
        return self._make_model()

    @property
    def events(self) -> Iterator[Event]:
        """All that was recorded, from the run's folder.

        Raises:
            InputError: It was run without a folder.
        """
        if self.folder is None:
            raise InputError("events are kept in a run's folder only; name one: train(…, out='runs/first')")
        return read_events(self.folder / EVENTS)

    def plot(self, path: str | Path | None = None) -> Figure:
        """A figure of it, which is also written to a PNG, SVG or PDF file if `path` names one.

        Raises:
            InputError: matplotlib is not installed.
        """
        return as_figure({self.summary.algorithm: self.outline}, path)

    def to_dataframe(self) -> Any:
        """The history as a pandas DataFrame.

        Raises:
            InputError: pandas is not installed.
        """
        return dataframe(self.rows())

    def rows(self) -> Rows:
        """The history as plain dictionaries."""
        return [asdict(row) for row in self.history]

    def __repr__(self) -> str:
        return as_text([self.summary])

    def _repr_html_(self) -> str:
        return as_html([self.summary])

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


def dataframe(rows: Rows) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise InputError("data frames are made by pandas; install it: pip install pandas") from None
    return pandas.DataFrame(rows)


def model_of(task: Task, state: Mapping[str, Tensor]) -> nn.Module:
    """The task's model with these weights."""
    if not state:
        raise InputError("this run has no model: only time was simulated, or it failed before there was one")
    with torch.random.fork_rng([]):  # making a model draws weights, which are thrown away
        model = task.model()
    model.load_state_dict(dict(state))
    return model.eval()


def load_result(folder: Path, task: Task | None = None) -> Result:
    """What came out of a run of the past; its model is that of the task, if one is given."""
    builder, history, outline = SummaryBuilder(), History(), RunOutline()
    for event in read_events(folder / EVENTS):
        for each in (builder, history, outline):
            each.take(event)
    try:
        summary = builder.summary()
    except InputError:
        raise InputError(f"the run at {folder} has not ended; `ownpace show {folder}` says how far it is") from None

    def make_model() -> nn.Module:
        try:
            state = load_file(folder / MODEL)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{folder / MODEL} cannot be read: {error}") from None
        return model_of(task or _task(folder), state)

    return Result(summary, _wall_seconds(folder), None, folder, None, None, (), history, outline, make_model)


def _task(folder: Path) -> Task:
    # An algorithm or optimizer that cannot be made again does not matter to the model.
    config = Config.load(folder, algorithm="sync", parameters={}, optimizer="sgd")
    return task_of(config.task, config.model, config.task_parameters)


def _wall_seconds(folder: Path) -> float:
    try:
        return float(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return float("nan")
