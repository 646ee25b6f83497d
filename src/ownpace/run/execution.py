"""A description carried out: `execute`, and `train` in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.contract.events import Event
from ownpace.core.learning.task import Task
from ownpace.engines import ENGINES, Job, Outcome, is_main_process
from ownpace.engines.job import OnProgress
from ownpace.run.again import note_failure, started_again
from ownpace.run.checkpoints import Checkpoints, CheckpointWriter
from ownpace.run.config import Config, help_of
from ownpace.run.fields import types_of
from ownpace.run.folder import RunFolder
from ownpace.run.recording import Recording, Result
from ownpace.run.resume import Resumption, find_resumption
from ownpace.run.resumed_folder import ResumedFolder
from ownpace.tasks import TASKS

P = ParamSpec("P")
T = TypeVar("T")


def execute(
    config: Config,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    resumption: Resumption | None = None,
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
        resumption: What the run goes on from, whose `config` is then the first argument (None: it begins).
        job: `config.job(out)`, if that was called before to find bad input early.
        on_start: Gets the job before it runs.
        on_event: Gets every event.
        on_progress: Called now and then with the samples so far and the engine's time.

    Returns:
        The result. An error of the run itself (divergence, a dead machine, Ctrl-C, a full disk) is in it; bad input
        raises.
    """
    job = job or config.job(out)
    if resumption is not None:
        job = replace(job, resume_from=resumption.state)
    with _folder(config, out, resumption, overwrite=overwrite) as folder:
        try:
            # Before the run: one that is cut off can then be repeated.
            folder.write_config(resolved := config.resolved(job))
            recording = Recording(folder, resolved, _writer(folder, config), resumption, on_event)
            job = replace(job, on_checkpoint=recording.on_checkpoint if _makes_checkpoints(config, out) else None)
            if on_start is not None:
                on_start(job)
            with recording:
                outcome = ENGINES[config.engine_name](job, recording.emit, on_progress)
            result = recording.result(outcome, job.algorithm)
        except InputError:  # which could not be found earlier
            folder.discard()
            raise
        return _written(result, outcome, folder)


def _written(result: Result, outcome: Outcome, folder: RunFolder | ResumedFolder) -> Result:
    """The result, once it is in the folder."""
    if result.error is not None and folder.keep_earlier():
        return replace(result, folder=None)
    missing = folder.write_result(result.as_dict(), outcome.model)
    result = result if missing is None else replace(result, error=result.error or missing)
    note_failure(folder.path, result.error)
    return result


def _folder(
    config: Config, out: Path | None, resumption: Resumption | None, *, overwrite: bool
) -> RunFolder | ResumedFolder:
    if not is_main_process():
        return RunFolder(None, overwrite=False)  # rank 0 writes
    if out is None and config.checkpoint_every:
        raise InputError(
            f"checkpoint_every is {config.checkpoint_every}, but there is no folder to write to; name one with out"
        )
    if resumption is None or out is None:
        return RunFolder(out, overwrite=overwrite, events_limit_mb=config.events_limit_mb)
    return ResumedFolder(resumption, out, overwrite=overwrite, events_limit_mb=config.events_limit_mb)


def _makes_checkpoints(config: Config, out: Path | None) -> bool:
    """Whether the run makes checkpoints: all ranks of torchrun's must say the same, though only the first writes."""
    by_default = config.engine_name == "process"
    return out is not None and (by_default if config.checkpoint_every is None else config.checkpoint_every > 0)


def _writer(folder: RunFolder | ResumedFolder, config: Config) -> CheckpointWriter | None:
    """Who writes checkpoints, if this process does."""
    if folder.path is None or not _makes_checkpoints(config, folder.path):
        return None
    # In virtual time nobody waits for the disk, and a run must not depend on how fast that is.
    on_processes = config.engine_name == "process"
    return CheckpointWriter(
        Checkpoints(folder.path), kept=config.checkpoints_kept, in_background=on_processes, last=folder.checkpoint
    )


@dataclass(frozen=True, kw_only=True)
class _TrainArguments(Config):
    """What `train` takes: the fields of `Config`, where to write, and what to go on from."""

    out: str | Path | None = None
    overwrite: bool = False
    resume: str | Path | None = None


def _takes(arguments: Callable[P, Config]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the arguments of a dataclass: for type checkers and editors, and at run time for `help()`.

    So the arguments are written down once, with their types and defaults, in `Config`.
    """
    assert isinstance(arguments, type)
    hints = types_of(arguments)
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
def train(
    *positional: object,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: str | Path | None = None,
    **fields: object,
) -> Result:
    """Train, in one call: `ownpace.train(algorithm="sync", task="digits", fleet="4,2,1,1", epochs=5)`.

    Args:
        *positional: Nothing: all arguments are given by name.
        out: The run's folder (None: nothing is written).
        overwrite: Whether that folder may hold an earlier run.
        resume: The folder of a run to go on with, or a checkpoint in it. Fields are then those that change.
        **fields: The fields of `ownpace.Config`.

    Raises:
        OwnpaceError: Bad input, or the run ended early: it diverged, or a machine died.

    >>> train(task="quadratic", fleet="2,1", epochs=4, momentum=0.9, lr=0.05).summary.loss < 10
    True
    """
    if positional:
        raise InputError(f"train was given {positional[0]!r} without a name; {_meant(positional[0])}")
    known = [*Config.__dataclass_fields__, "out", "overwrite", "resume"]
    for name in fields:
        if name not in known:
            raise unknown("argument", name, known)
    folder = None if out is None else Path(out)
    again = started_again(folder)
    if again is not None and again.resumption is not None:
        result = execute(again.resumption.config, folder, resumption=again.resumption)
    elif resume is None:
        make: Callable[..., Config] = Config
        result = execute(make(**fields), folder, overwrite=overwrite or again is not None)
    else:
        found = find_resumption(resume, fields)
        result = execute(found.config, folder or found.run, overwrite=overwrite, resumption=found)
    if result.error is not None:
        if (hint := result.how_to_go_on()) is not None:
            result.error.add_note(hint)
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
