"""What is asked about another fleet: who is the first there, and how soon at the target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    is_guess: bool = False
    """Whether it may learn otherwise there, which was not tried."""
    same_samples_per_s: float | None = None
    """By speed alone: of the choice on the fleet as it is, there; like is compared with like."""


def speeds_elsewhere(base: Config, entrants: Sequence[Entrant], num_workers: int) -> Asks[dict[str, Timing]]:
    """How fast the first of a ranking are on another fleet; nothing, if one of them has not been timed."""
    speeds = {}
    for entrant in entrants:
        timing = yield from timed(base, entrant.candidate, num_workers)
        if timing is None:
            return None
        speeds[entrant.candidate.algorithm] = timing
    return speeds


def first_elsewhere(entrants: Sequence[Entrant], speeds: Mapping[str, Timing]) -> list[Entrant]:
    """Those that should be first there, if they learn as they do here."""
    return sorted(entrants, key=lambda entrant: entrant.at_speed(speeds[entrant.candidate.algorithm]))[:FINALISTS]


def by_speed_elsewhere(
    entrants: Sequence[Entrant],
    speeds: Mapping[str, Timing],
    terms: Terms | None,
    *,
    chosen: str,
    same_workers: bool,
) -> Elsewhere:
    """What their speeds say of another fleet; `chosen` is the choice on the fleet as it is."""
    if terms is None:
        name = best_by_speed(speeds)
        return Elsewhere(name, speeds[name], None, same_samples_per_s=speeds[chosen].samples_per_s)
    best = first_elsewhere(entrants, speeds)[0]
    timing = speeds[best.candidate.algorithm]
    seconds = best.at_speed(timing)
    spread_s = None if best.spread_s is None else best.spread_s * seconds / best.seconds
    # The same workers make the same updates, only sooner: nothing has to be learnt anew, and no chance comes in.
    is_sure = same_workers and best.learns_alike(timing)
    return Elsewhere(best.candidate.algorithm, timing, seconds, spread_s, is_guess=not is_sure)


def elsewhere(
    base: Config, entrants: Sequence[Entrant], speeds: Mapping[str, Timing], terms: Terms, factors: Sequence[float]
) -> Asks[Elsewhere]:
    """Let the two learn that should be first on another fleet.

    Their rates are those of the fleet as it is, times these factors: more workers bear a higher one.
    """
    first = first_elsewhere(entrants, speeds)
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
            name = entrant.candidate.algorithm
            found.append(Elsewhere(name, speeds[name], fmean(known), spread))
    nobody = first[0].candidate.algorithm
    return min(found, key=lambda each: each.seconds or 0.0, default=Elsewhere(nobody, speeds[nobody], None))
