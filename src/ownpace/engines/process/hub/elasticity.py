"""What a run does when machines come and go, as it was asked to."""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.choices import OnFailure
from ownpace.engines.job import OnCheckpoint
from ownpace.engines.process.meet.run_state import ResumedState
from ownpace.engines.process.node.terms import RunTerms


@dataclass(frozen=True)
class Elasticity:
    """The part of a run's description that deals with this."""

    terms: RunTerms
    on_failure: OnFailure = "continue"
    min_workers: int = 1
    max_workers: int | None = None
    on_checkpoint: OnCheckpoint | None = None
    resumed: ResumedState | None = None
    joins_by_force: bool = False
    """Whether the others abandon what they do when a worker joins: a user's loop cannot be asked to end."""
