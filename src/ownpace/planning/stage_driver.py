"""The stages of a plan: searches driven until they are done or the time is up, and whoever waits is told how far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ownpace.planning.deadlines import Deadlines
from ownpace.planning.driving import Asks, T, drive
from ownpace.planning.pool import Pool
from ownpace.planning.progress import OnPlanProgress, PlanProgress

NAMED = 2
"""Searches under way; of more, it is said that there are more."""


@dataclass(frozen=True)
class StageDriver:
    """Drives one stage after the other."""

    pool: Pool
    deadlines: Deadlines
    """Of the plan."""
    counts: dict[str, int]
    """Runs, by stage."""
    uncertain: list[str]
    """Gets a line if the time was up."""
    on_progress: OnPlanProgress | None = None

    def drive(
        self,
        stage: str,
        searches: Mapping[str, Asks[T]],
        expected: int,
        *,
        deadline: float | None = None,
        on_found: Callable[[str, T], None] = lambda name, found: None,
        missed: str = "not searched",
        pool: Pool | None = None,
    ) -> dict[str, T]:
        """What each search has found; those that the deadline has cut off are left out, and `missed` says so.

        They are carried out in the plan's pool, or in another one.
        """
        self.counts.setdefault(stage, 0)

        # While nothing ends, too: whoever waits sees that it is alive.
        def tell(names: Sequence[str]) -> None:
            if self.on_progress is not None:
                done = self.counts[stage]
                note = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
                self.on_progress(PlanProgress(stage, done, max(expected, done), note, self.deadlines.seconds))

        def on_trial(name: str) -> None:
            self.counts[stage] += 1
            tell([name])

        found = drive(searches, pool or self.pool, on_trial, tell, on_found, deadline)
        if late := sorted(searches.keys() - found.keys()):
            self.uncertain.append(f"{', '.join(late)}: {missed}, the time was up; give more with --seconds")
        return found
