"""The moments at which a fault hurts most: just before, at and just after something happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ownpace.core.contract.events import Compute, Event, Transfer, Update
from ownpace.engines import ENGINES, Job
from ownpace.fleet import PlannedFault
from ownpace.testing.torture.draws import Draws


def sharpen(draws: Draws, job: Job) -> Job:
    """The same run, with its faults at such moments: those of an undisturbed run, whose time alone is simulated."""
    events: list[Event] = []
    undisturbed = replace(
        job, fleet=replace(job.fleet, fault=()), timing_only=True, checkpoint_every=None, min_workers=1
    )
    ENGINES["virtual"](undisturbed, events.append, None)
    moments = [event.t for event in events if isinstance(event, Update)]
    moments += [event.until for event in events if isinstance(event, Transfer | Compute)]
    faults = tuple(_moved(draws, fault, moments) for fault in job.fleet.fault)
    return replace(job, fleet=replace(job.fleet, fault=faults))


def _moved(draws: Draws, fault: PlannedFault, moments: Sequence[float]) -> PlannedFault:
    if not moments:
        return fault
    at_s = max(0.0, draws.one_of(*moments) * (1 + draws.one_of(-1e-9, 0.0, 1e-9)))
    # Some are back at such a moment, too.
    back_s = None if fault.back_at_s is None else at_s + (fault.back_at_s - fault.at_s)
    later = [moment for moment in moments if moment > at_s]
    if back_s is not None and later and draws.chance(0.5):
        back_s = draws.one_of(*later)
    return replace(fault, at_s=at_s, back_at_s=back_s)
