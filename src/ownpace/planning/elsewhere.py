"""What is asked about another fleet: who is the first there, and how soon at the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ownpace.planning.by_speed import best_by_speed
from ownpace.planning.candidates import Candidate
from ownpace.planning.driving import Asks
from ownpace.planning.study import FINALISTS, Terms, attempts, timed
from ownpace.planning.timing import Timing
from ownpace.run import Config

ALIKE = 0.2
"""Updates whose sizes differ by less than this share are taken to teach the same."""


@dataclass(frozen=True)
class Entrant:
    """One of a ranking, as it is asked on other fleets."""

    candidate: Candidate
    lr: float
    seconds: float
    """To the target, on the fleet as it is."""
    spread_s: float | None
    timing: Timing
    """On the fleet as it is."""

    def at_speed(self, timing: Timing) -> float:
        """Seconds at another speed, if it learns as it does now."""
        return self.seconds * self.timing.samples_per_s / timing.samples_per_s

    def learns_alike(self, timing: Timing) -> bool:
        """Whether its updates are about as large at that speed as they are now."""
        return abs(math.log(timing.samples_per_update / self.timing.samples_per_update)) < ALIKE


@dataclass(frozen=True)
class Elsewhere:
    """The best that was found on another fleet."""

    algorithm: str
    timing: Timing
    seconds: float | None
    """To the target; None: it was not there within the time that it was given, or not tried."""
    spread_s: float | None = None


def elsewhere(
    base: Config, entrants: Sequence[Entrant], terms: Terms | None, factors: Sequence[float], num_workers: int
) -> Asks[Elsewhere]:
    """Time the first of a ranking on another fleet; then let the two that should be first there learn.

    Their rates are those of the fleet as it is, times these factors: more workers bear a higher one.
    """
    speeds = {}
    for entrant in entrants:
        timing = yield from timed(base, entrant.candidate, num_workers)
        if timing is None:
            return None
        speeds[entrant.candidate.algorithm] = timing
    if terms is None:
        name = best_by_speed(speeds)
        return Elsewhere(name, speeds[name], None)
    first = sorted(entrants, key=lambda entrant: entrant.at_speed(speeds[entrant.candidate.algorithm]))[:FINALISTS]
    best, timing = first[0], speeds[first[0].candidate.algorithm]
    if num_workers == terms.num_workers and best.learns_alike(timing):
        # The same workers make the same updates, only sooner: nothing has to be learnt anew, and no chance comes in.
        seconds = best.at_speed(timing)
        spread_s = None if best.spread_s is None else best.spread_s * seconds / best.seconds
        return Elsewhere(best.candidate.algorithm, timing, seconds, spread_s)
    asked = [(entrant, entrant.lr * factor) for entrant in first for factor in factors]
    trials = [
        attempts(base, entrant.candidate, terms)(rate, terms.samples, seed)
        for entrant, rate in asked
        for seed in terms.seeds
    ]
    outcomes = yield trials
    done = [tried for tried in outcomes if tried is not None and not tried.is_cut]
    if len(done) < len(outcomes):
        return None  # where not all had their chance, nobody is the best
    num, found = len(terms.seeds), []
    for index, (entrant, _) in enumerate(asked):
        times = [tried.reached_s(terms.level or 0.0) for tried in done[index * num : (index + 1) * num]]
        known = [time for time in times if time is not None]
        if len(known) == num:
            spread = stdev(known) if num > 1 else None
            found.append(
                Elsewhere(entrant.candidate.algorithm, speeds[entrant.candidate.algorithm], fmean(known), spread)
            )
    return min(found, key=lambda each: each.seconds or 0.0, default=Elsewhere(best.candidate.algorithm, timing, None))
