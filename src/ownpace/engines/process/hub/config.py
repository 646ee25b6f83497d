"""What the hub is given: what it must know of a run, and what it is to do when machines come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ownpace.core.choices import OnFailure
from ownpace.core.contract import events
from ownpace.core.contract.target import Goal
from ownpace.engines.job import OnCheckpoint, OnProgress
from ownpace.engines.process.hub.evaluator import Evaluator
from ownpace.engines.process.meet.run_state import ResumedState
from ownpace.engines.process.node.terms import RunTerms

Away = Mapping[str, Sequence[tuple[float, float]]]
"""By worker: from when until when it was away."""


@dataclass(frozen=True)
class Elasticity:
    """What a run does when machines come and go, and what it goes on from."""

    terms: RunTerms
    on_failure: OnFailure = "continue"
    min_workers: int = 1
    max_workers: int | None = None
    on_checkpoint: OnCheckpoint | None = None
    resumed: ResumedState | None = None
    joins_by_force: bool = False
    """Whether the others abandon what they do when a worker joins: a user's loop cannot be asked to end."""


@dataclass(frozen=True)
class HubConfig:
    """What the hub must know of the run."""

    header: events.Run
    layers: Sequence[str]
    """Of the model, by name."""
    emit: events.Emit
    elasticity: Elasticity
    """How the run goes from one generation to the next."""
    on_progress: OnProgress | None = None
    limit_samples_per_s: Callable[[float, Away], float] | None = None
    """What the workers' prescribed paces allow, up to a time; None: it is computed from measured paces."""
    goal: Goal | None = None
    stop_at_target: bool = False
    make_evaluator: Callable[[], Evaluator] | None = None
    """None: the model is not evaluated here."""

    def is_spent(self, samples: int, now: float) -> bool:
        """Whether the run's budget is spent."""
        terms = self.elasticity.terms
        return samples >= terms.budget or now >= terms.deadline_s
