"""One run on real processes: started here, or one rank of those that torchrun started."""

from __future__ import annotations

from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.process.meet.environment import Environment
from ownpace.engines.process.run.launch import launch
from ownpace.engines.process.run.torchrun import run_rank


def run_process(job: Job, emit: events.Emit, on_progress: OnProgress | None = None) -> Outcome:
    """Run a job on real processes.

    Args:
        job: What to run.
        emit: Takes every event, on the launcher or on rank 0; other ranks get the first, evaluating and last ones.
        on_progress: Called now and then, there.

    Returns:
        How it ended. Errors of the run itself are in the outcome; bad input raises.
    """
    check_real(job)
    environment = Environment.read()
    if environment is None:
        return launch(job, emit, on_progress)
    return run_rank(job, environment, emit, on_progress)


def check_real(job: Job) -> None:
    """Raise if that is nothing for real processes."""
    if job.timing_only:
        raise InputError("timing_only simulates time; real processes take their own: use the engine 'virtual'")
    if kinds := {fault.kind for fault in job.fleet.fault} - {"pause"}:
        raise InputError(
            f"the fleet has faults of the kind {' and '.join(sorted(kinds))}, which only the engine 'virtual' plays; "
            "leave those out, and kill processes yourself"
        )


def is_main_process() -> bool:
    """Whether this process shows progress and writes the run folder: it is no torchrun rank, or the first."""
    environment = Environment.read()
    return environment is None or environment.rank == 0


def is_next_in_line() -> bool:
    """Whether this process speaks for the run if the first rank is gone."""
    environment = Environment.read()
    return environment is not None and environment.rank == 1


def num_ranks() -> int | None:
    """How many processes torchrun started; None: it did not start this one."""
    environment = Environment.read()
    return None if environment is None else environment.world_size
