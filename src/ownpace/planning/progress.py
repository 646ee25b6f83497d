"""How far a plan is, for those who wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class PlanProgress:
    """How far a plan is."""

    stage: str
    done: int
    """Runs of this stage."""
    expected: int
    """About."""
    note: str = ""
    """What is under way."""
    limit_s: float | None = None
    """That the plan takes at most."""


OnPlanProgress = Callable[[PlanProgress], None]
