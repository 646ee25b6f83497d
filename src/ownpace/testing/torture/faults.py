"""What happens to the machines of a run, drawn at random."""

from __future__ import annotations

from dataclasses import replace

from ownpace.engines import Job
from ownpace.fleet import PlannedFault
from ownpace.testing.torture.draws import Draws


def draw_faults(draws: Draws, job: Job, takes_s: float) -> Job:
    """The same run, with something happening to its machines."""
    faults: list[PlannedFault] = []
    workers = [worker.name for worker in job.fleet.workers]
    for _ in range(draws.one_of(0, 1, 1, 2, 3)):
        at_s = takes_s * draws.between(0.01, 2)
        back_s = at_s + takes_s * draws.between(0.01, 2)
        fault = PlannedFault(worker=draws.one_of(*workers), at_s=at_s, kind="pause", back_at_s=back_s)
        faults.append(fault)
    return replace(job, fleet=replace(job.fleet, fault=tuple(faults)))
