"""A description carried out: `execute`, and `train` in one call."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar, get_type_hints

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, OwnpaceError, unknown
from ownpace.core.contract.events import Event
from ownpace.core.learning.task import Task
from ownpace.engines import ENGINES, Job, Outcome, is_main_process
from ownpace.engines.job import OnProgress
from ownpace.report.summary import Summary, SummaryBuilder
from ownpace.run.config import Config, help_of
from ownpace.run.folder import RunFolder
from ownpace.tasks import TASKS

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    summary: Summary
    wall_seconds: float
    error: OwnpaceError | None
    folder: Path | None

    def as_dict(self) -> dict[str, object]:
        """The summary and the wall-clock time, ready for JSON."""
        return {**self.summary.as_dict(), "wall_seconds": self.wall_seconds, "out": self.folder and str(self.folder)}


def execute(
    config: Config,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    job: Job | None = None,
    on_start: Callable[[Job], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Run a configuration to its end and write its folder, whatever that end is.

    Args:
        config: What to run.
        out: The run's folder (None: nothing is written).
        overwrite: Whether the folder may hold an earlier run, which is then replaced.
        job: `config.job(out)`, if that was called before to find bad input early (None: it is called here).
        on_start: Gets the job before it runs.
        on_event: Gets every event.
        on_progress: Called now and then with the samples so far and the engine's time.

    Returns:
        The result. An error of the run itself (divergence, a dead machine, Ctrl-C, a full disk) is in it; bad input
        raises.
    """
    job = job or config.job(out)
    if not is_main_process():
        out = None  # rank 0 writes
    with RunFolder(out, overwrite=overwrite, events_limit_mb=config.events_limit_mb) as folder:
        try:
            # Before the run: one that is cut off can then be repeated.
            folder.write_config(config.resolved(job))
            if on_start is not None:
                on_start(job)
            outcome, result = _run(job, config.engine_name, folder, on_event, on_progress)
        except InputError:  # which could not be found earlier
            folder.discard()
            raise
        if result.error is not None and folder.keep_earlier():
            return replace(result, folder=None)
        missing = folder.write_result(result.as_dict(), outcome.model)
    return result if missing is None else replace(result, error=result.error or missing)


def _run(
    job: Job,
    engine: str,
    folder: RunFolder,
    on_event: Callable[[Event], None] | None,
    on_progress: OnProgress | None,
) -> tuple[Outcome, Result]:
    """Let the engine run the job, its events counted, written and shown as they come."""
    started = time.perf_counter()
    builder = SummaryBuilder()

    def emit(event: Event) -> None:
        # Counted and written before it is shown: if the handler raises, the record is not lost.
        builder.take(event)
        folder.write_event(event)
        if on_event is not None:
            on_event(event)

    outcome = ENGINES[engine](job, emit, on_progress)
    summary = builder.summary()
    if outcome.error is not None:
        # An error that the last record does not know: replicas that differ are found after it was written.
        summary = replace(summary, code=outcome.error.code)
    return outcome, Result(summary, time.perf_counter() - started, outcome.error, folder.path)


@dataclass(frozen=True, kw_only=True)
class _TrainArguments(Config):
    """What `train` takes: the fields of `Config`, and where to write."""

    out: str | Path | None = None
    overwrite: bool = False


def _takes(arguments: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the arguments of a dataclass: for type checkers and editors, and at run time for `help()`.

    So the arguments are written down once, with their types and defaults, in `Config`.
    """
    hints = get_type_hints(arguments)
    signature = inspect.signature(arguments)
    # Types instead of the strings that dataclasses keep: help() then shows them readably.
    parameters = [p.replace(annotation=hints[name]) for name, p in signature.parameters.items()]

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        fields = "\n".join(f"    {name}: {help_of(name).text}" for name in Config.__dataclass_fields__)
        function.__doc__ = f"{inspect.getdoc(function)}\n\nFields of `Config`:\n{fields}\n"
        function.__dict__["__signature__"] = signature.replace(parameters=parameters)
        return function

    return decorate


@_takes(_TrainArguments)
def train(*positional: object, out: str | Path | None = None, overwrite: bool = False, **fields: object) -> Result:
    """Train, in one call: `ownpace.train(algorithm="sync", task="digits", fleet="4,2,1,1", epochs=5)`.

    Args:
        *positional: Nothing: all arguments are given by name.
        out: The run's folder (None: nothing is written).
        overwrite: Whether that folder may hold an earlier run.
        **fields: The fields of `ownpace.Config`.

    Raises:
        OwnpaceError: Bad input, or the run ended early: it diverged, or a machine died.

    >>> train(task="quadratic", fleet="2,1", epochs=4, momentum=0.9, lr=0.05).summary.loss < 10
    True
    """
    if positional:
        raise InputError(f"train was given {positional[0]!r} without a name; {_meant(positional[0])}")
    known = [*Config.__dataclass_fields__, "out", "overwrite"]
    for name in fields:
        if name not in known:
            raise unknown("argument", name, known)
    make: Callable[..., Config] = Config
    result = execute(make(**fields), None if out is None else Path(out), overwrite=overwrite)
    if result.error is not None:
        raise result.error
    return result


def _meant(value: object) -> str:
    """What to write instead of an argument without a name."""
    if isinstance(value, Config):
        return "a configuration is run by ownpace.execute(config)"
    if isinstance(value, Algorithm) or (isinstance(value, str) and value in ALGORITHMS):
        name = "algorithm"
    elif isinstance(value, Task) or (isinstance(value, str) and value in TASKS):
        name = "task"
    else:
        name = "out" if isinstance(value, str | Path) else "algorithm"
    return f"write {name}={value!r}"
