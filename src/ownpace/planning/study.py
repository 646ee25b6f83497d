"""What is asked of one algorithm: how fast it is, which learning rate is its best, and how soon it is at the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Protocol

from ownpace.planning.by_speed import best_by_speed
from ownpace.planning.candidates import MANY_WORKERS, Candidate
from ownpace.planning.driving import Asks
from ownpace.planning.halving import Halved, halve
from ownpace.planning.noise import NoiseScale
from ownpace.planning.timing import Timing
from ownpace.planning.trial import Trial, Tried, reached
from ownpace.run import Config

ENOUGH_UPDATES = 8
"""A speed is measured over at least this many updates, if they do not take too long."""
MOST_LENGTHENED = 4
ALIKE = 0.2
"""Updates whose sizes differ by less than this share are taken to teach the same."""
FINALISTS = 2
"""So many rates are run with all seeds: one seed's best is the best by luck, sometimes."""
PART_OF_THE_WAY = 0.97
"""A target that nobody named is so much of the way from the first score to the best."""


def timed(base: Config, candidate: Candidate, num_workers: int) -> Asks[Timing]:
    """How fast an algorithm is, by simulating time alone."""
    # Of very many workers, each update takes seconds to simulate, and chance averages out sooner.
    many = num_workers > MANY_WORKERS
    samples = (6 if many else 16) * num_workers * base.batch_size
    for _ in range(MOST_LENGTHENED // 2 if many else MOST_LENGTHENED):
        changes = {**_algorithm(candidate), "samples": samples, "timing_only": True, "detail": True}
        (tried,) = yield [Trial(base, changes)]
        # Nobody shows its speed in two or three updates, as the first ones are unlike the others.
        if tried.timing.updates >= (ENOUGH_UPDATES // 2 if many else ENOUGH_UPDATES) or tried.reason != "finished":
            break
        samples *= 3
    return tried.timing


@dataclass(frozen=True)
class Terms:
    """What all algorithms are given alike."""

    level: float | None
    """The score to be reached (None: as good a score as there is)."""
    samples: int
    """Of the longest runs."""
    seconds: float | None
    """Of virtual time, after which a run is given up (None: none)."""
    seeds: tuple[int, ...]
    num_test: int
    num_workers: int = 1
    """Of the fleet as it is."""
    by_loss: bool = False
    """Whether the score is the loss, with a minus."""
    noise: bool = False
    """Whether to measure the gradients' noise on the way."""

    @property
    def eval_every(self) -> int:
        """Samples between evaluations: times are known no better than this."""
        return max(1, self.samples // 80)


@dataclass(frozen=True)
class Studied:
    """What was found."""

    lr: float
    level: float | None
    """The score whose time was taken; None: there was none to be reached."""
    times: tuple[float | None, ...]
    """Seconds until it was reached, with each seed; None: never."""
    samples: float | None
    """That it took to get there, on average."""
    at_edge: bool
    best: float
    """The best score."""
    noise: NoiseScale | None
    seconds: float
    """How long the first seed's run was."""

    @property
    def mean_s(self) -> float | None:
        """The mean over seeds; None if one of them never was there: a mean of the others would hide it."""
        return None if self.num_missing else self.mean_known_s

    @property
    def num_missing(self) -> int:
        """Seeds that never were there."""
        return sum(time is None for time in self.times)

    @property
    def mean_known_s(self) -> float:
        """The mean over the seeds that were there."""
        known = [time for time in self.times if time is not None]
        return fmean(known) if known else math.inf

    @property
    def spread_s(self) -> float | None:
        """The standard deviation over seeds."""
        known = [time for time in self.times if time is not None]
        return stdev(known) if len(known) > 1 else None


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
class Reachable:
    """What can be reached, and the rate that gets there in the end: seldom the one that is there first."""

    level: float | None
    """None: nothing was learnt."""
    lr: float
    noise: NoiseScale | None


def study(base: Config, candidate: Candidate, timing: Timing, grid: Sequence[float], terms: Terms) -> Asks[Studied]:
    """Search the best rates with the first seed; then run the others with them."""
    lengths = _lengths(terms.samples, timing.samples_per_update)

    attempt = _attempts(base, candidate, terms)
    halved = yield from halve(attempt, grid, lengths, terms.level)
    runs = {rate: [tried] for rate, tried in halved.first(FINALISTS, terms.level).items()}
    if terms.level is not None and terms.seeds[1:]:
        there = [rate for rate, (tried,) in runs.items() if tried.reached_s(terms.level) is not None]
        # Somewhat longer: another seed may be a little later, which is not the same as never.
        longer = lengths[-1] + lengths[-1] // 2
        seeds = terms.seeds[1:]
        more = yield [attempt(rate, longer, seed) for rate in there for seed in seeds]
        for index, rate in enumerate(there):
            runs[rate] += more[index * len(seeds) : (index + 1) * len(seeds)]
    found = [_studied(rate, terms.level, each, halved) for rate, each in runs.items()]
    return min(found, key=lambda each: (each.num_missing, each.mean_known_s, found.index(each)))


def confirmed(base: Config, candidate: Candidate, found: Studied, terms: Terms) -> Asks[Studied]:
    """The same, with more seeds: of those that are close to the first, chance must not choose."""
    attempt = _attempts(base, candidate, terms)
    more = yield [attempt(found.lr, 2 * terms.samples, seed) for seed in terms.seeds]
    level = terms.level if terms.level is not None else math.inf
    return replace(found, times=(*found.times, *(tried.reached_s(level) for tried in more)))


class _Attempt(Protocol):
    def __call__(self, rate: float, samples: int, seed: int | None = None) -> Trial: ...


def _attempts(base: Config, candidate: Candidate, terms: Terms) -> _Attempt:
    """The trial of a rate, for this many samples."""

    def attempt(rate: float, samples: int, seed: int | None = None) -> Trial:
        changes = {
            **_algorithm(candidate),
            "lr": rate,
            "seed": terms.seeds[0] if seed is None else seed,
            "samples": samples,
            "seconds": terms.seconds,
            "eval_every": terms.eval_every,
        }
        return Trial(base, changes, terms.level, terms.num_test, by_loss=terms.by_loss, noise=terms.noise)

    return attempt


def find_target(
    base: Config, candidate: Candidate, timing: Timing, grid: Sequence[float], terms: Terms
) -> Asks[Reachable]:
    """A target that can be reached: what the best rate gets to."""
    lengths = _lengths(terms.samples, timing.samples_per_update)
    halved = yield from halve(_attempts(base, candidate, terms), grid, lengths, None)
    level = reachable(halved.best)
    return Reachable(level, halved.lr, noise_near(halved, level))


def _studied(lr: float, level: float | None, runs: list[Tried], halved: Halved) -> Studied:
    marks = [None if level is None else reached(run.points, level) for run in runs]
    samples = [mark.samples for mark in marks if mark is not None]
    return Studied(
        lr=lr,
        level=level,
        times=tuple(None if mark is None else mark.seconds for mark in marks),
        samples=fmean(samples) if samples else None,
        at_edge=halved.is_edge(lr),
        best=max(each.best for each in halved.tried.values()),
        noise=noise_near(halved, level),
        seconds=runs[0].points[-1].seconds if runs[0].points else 0.0,
    )


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
        speeds[entrant.candidate.algorithm] = yield from timed(base, entrant.candidate, num_workers)
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
        _attempts(base, entrant.candidate, terms)(rate, terms.samples, seed)
        for entrant, rate in asked
        for seed in terms.seeds
    ]
    outcomes = yield trials
    num, found = len(terms.seeds), []
    for index, (entrant, _) in enumerate(asked):
        times = [tried.reached_s(terms.level or 0.0) for tried in outcomes[index * num : (index + 1) * num]]
        known = [time for time in times if time is not None]
        if len(known) == num:
            spread = stdev(known) if num > 1 else None
            found.append(
                Elsewhere(entrant.candidate.algorithm, speeds[entrant.candidate.algorithm], fmean(known), spread)
            )
    return min(found, key=lambda each: each.seconds or 0.0, default=Elsewhere(best.candidate.algorithm, timing, None))


def noise_near(halved: Halved, level: float | None) -> NoiseScale | None:
    """The noise where a run was nearest to the target, and of several the one with the lowest rate: high rates make
    parameters jump back and forth, which looks like a large gradient.
    """
    measured = [(rate, tried) for rate, tried in halved.history if tried.noise is not None]
    if not measured or level is None:
        return None
    # Within two points of a hundred they are equally near.
    return min(measured, key=lambda each: (round(50 * abs(each[1].last[0] - level)), each[0]))[1].noise


def reachable(tried: Tried) -> float | None:
    """A target that a run has reached: nearly the best of its scores, as a round number."""
    start, best = tried.start, tried.best
    if not best > start:
        return None
    level = start + PART_OF_THE_WAY * (best - start)
    if tried.points[0].score == -tried.points[0].loss:  # no accuracy
        digits = 2 - math.floor(math.log10(abs(level))) if level else 0
        return float(math.floor(level * 10.0**digits) / 10.0**digits)
    return math.floor(level * 200) / 200


def _algorithm(candidate: Candidate) -> dict[str, object]:
    return {"algorithm": candidate.algorithm, "parameters": dict(candidate.parameters)}


def _lengths(samples: int, samples_per_update: float) -> list[int]:
    """A quarter, half and all of the samples, but never so few that there is nothing to see."""
    least = math.ceil(4 * samples_per_update)
    return sorted({max(samples // part, least) for part in (4, 2, 1)})
