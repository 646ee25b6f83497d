"""What happens to the machines of a run, drawn at random."""

from __future__ import annotations

from dataclasses import replace

from ownpace.engines import Job
from ownpace.fleet import PlannedFault
from ownpace.fleet.model import FaultKind
from ownpace.testing.torture.draws import Draws


def draw_faults(draws: Draws, job: Job, takes_s: float) -> Job:
    """The same run, with something happening to its machines, and a rule for what the others do then."""
    number = draws.one_of(0, 1, 1, 2, 3, 5)
    faults = tuple(_fault(draws, job, takes_s) for _ in range(number))
    workers = len(job.fleet.workers)
    return replace(
        job,
        fleet=replace(job.fleet, fault=faults),
        on_failure="stop" if draws.chance(0.05) else draws.one_of("continue", "continue", "restart"),
        min_workers=draws.number(1, workers) if draws.chance(0.1) else 1,
        max_workers=workers if draws.chance(0.5) else None,
    )


def _fault(draws: Draws, job: Job, takes_s: float) -> PlannedFault:
    kinds: tuple[FaultKind, ...] = ("kill", "kill", "cut", "cut", "pause")
    kind = draws.one_of(*kinds)
    # Some in the first moments, and some when the run is long over.
    at_s = takes_s * draws.between(0.01, 2)
    # Short and long, measured by the run, and by the seconds after which a silent machine is taken for dead.
    back_s: float | None = at_s + draws.one_of(takes_s, 10.0) * draws.between(0.01, 3)
    if kind != "pause" and draws.chance(0.3):
        back_s = None
    who = draws.one_of(*job.fleet.workers).name
    if kind == "kill" and job.servers and draws.chance(0.5):
        who = f"server-{draws.number(0, len(job.servers) - 1)}"
    return PlannedFault(worker=who, at_s=at_s, kind=kind, back_at_s=back_s)
