"""A description carried out: `execute`, and `train` in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Event
from ownpace.engines import ENGINES, Job, Outcome, is_main_process
from ownpace.engines.job import OnProgress
from ownpace.run.again import note_failure
from ownpace.run.checkpoints import Checkpoints, CheckpointWriter
from ownpace.run.config import Config
from ownpace.run.folder import RunFolder
from ownpace.run.orphaned import last_words
from ownpace.run.recording import Recording, Result
from ownpace.run.resume import Resumption
from ownpace.run.resumed_folder import ResumedFolder

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
    job = job or config.job(out, resumed=resumption is not None)
    if resumption is not None:
        job = replace(job, resume_from=resumption.state)
    with _folder(config, out, resumption, overwrite=overwrite) as folder:
        try:
            # Before the run: one that is cut off can then be repeated.
            folder.write_config(resolved := config.resolved(job))
            recording = Recording(folder, resolved, _writer(folder, config), resumption, on_event)
            job = _with_checkpoints(job, recording, config, out)
            if on_start is not None:
                on_start(job)
            with recording:
                outcome = ENGINES[config.engine_name](job, recording.emit, on_progress)
            result = recording.result(outcome, job)
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


def _with_checkpoints(job: Job, recording: Recording, config: Config, out: Path | None) -> Job:
    if out is None or not _makes_checkpoints(config, out):
        return job
    # Absolute: the process that says the last words may have been started elsewhere.
    return replace(job, on_checkpoint=recording.on_checkpoint, last_words=partial(last_words, out.absolute()))


def _makes_checkpoints(config: Config, out: Path | None) -> bool:
    """Whether the run makes checkpoints: all torchrun ranks must say the same, though only the first writes."""
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
