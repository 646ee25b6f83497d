"""What is asked of one algorithm: how fast it is, which learning rate is its best, and how soon it is at the target."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Protocol

from ownpace.planning.candidates import MANY_WORKERS, Candidate
from ownpace.planning.driving import Answers, Asks
from ownpace.planning.halving import Halved, halve
from ownpace.planning.noise import NoiseScale
from ownpace.planning.timing import Timing
from ownpace.planning.trial import Trial, Tried, reached
from ownpace.run import Config

ENOUGH_UPDATES = 16
"""A speed is measured over at least this many updates, if they do not take too long. The first updates bring what was
computed before they were looked at, and are of other sizes: with half as many, speeds came out 4 % too high, and above
what the machines make."""
MOST_LENGTHENED = 4
FINALISTS = 2
"""So many rates are run with all seeds: one seed's best is the best by luck, sometimes."""
LEAST_UPDATES = 10
"""A run that was cut off earlier has not shown what can be learnt."""
SURE = 3.0
"""Standard errors of an accuracy, that a gain must be more than."""
ROUNDS, FEW_ROUNDS = (4, 2, 1), (4, 1)
"""A quarter, half and all of the samples; or what costs less."""
PART_OF_THE_WAY = 0.97
"""A target that nobody named is so much of the way from the first score to the best."""


def timed(base: Config, candidate: Candidate, num_workers: int) -> Asks[Timing]:
    """How fast an algorithm is, by simulating time alone."""
    # Of very many workers, each update takes seconds to simulate, and chance averages out sooner.
    many = num_workers > MANY_WORKERS
    samples = (6 if many else 16) * num_workers * base.batch_size
    timing = None
    for _ in range(MOST_LENGTHENED // 2 if many else MOST_LENGTHENED):
        changes = {**_algorithm(candidate), "samples": samples, "timing_only": True, "detail": True}
        (tried,) = yield [Trial(base, changes)]
        # Of one that was cut off before its first update, nothing is known.
        if tried is None or (tried.is_cut and not tried.timing.updates):
            break
        timing = tried.timing
        # Nobody shows its speed in two or three updates, as the first ones are unlike the others.
        if timing.updates >= (ENOUGH_UPDATES // 2 if many else ENOUGH_UPDATES) or tried.reason != "finished":
            break
        samples *= 3
    return timing


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
    by_loss: bool = False
    """Whether the score is the loss, with a minus."""
    noise: bool = False
    """Whether to measure the gradients' noise, too."""
    parts: tuple[int, ...] = ROUNDS
    """Of the longest runs, how much those of each round of the search are."""
    num_evaluations: int = 80
    """Of a longest run: times are known no better than this."""

    @property
    def eval_every(self) -> int:
        """Samples between evaluations."""
        return max(1, self.samples // self.num_evaluations)


@dataclass(frozen=True)
class Studied:
    """What was found."""

    lr: float
    level: float | None
    """The score whose time was taken; None: there was none to be reached."""
    times: tuple[float | None, ...]
    """Seconds until it was reached, with each seed that there was time for; None: never."""
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
        return self.mean_known_s if self.times and not self.num_missing else None

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


def study(
    base: Config,
    candidate: Candidate,
    timing: Timing,
    grid: Sequence[float],
    terms: Terms,
    *,
    finds_level: bool = False,
) -> Asks[Studied]:
    """Search the best rates with the first seed; then run the others with them.

    Args:
        base: What all trials share.
        candidate: The algorithm.
        timing: Of it.
        grid: The rates to begin with.
        terms: What all algorithms are given alike.
        finds_level: If no rate gets to the level, take one that can be reached.
    """
    lengths = _lengths(terms, timing.samples_per_update)
    halved = yield from halve(attempts(base, candidate, terms), grid, lengths, terms.level)
    if halved is None:
        return None
    level = terms.level
    if finds_level and (level is None or halved.best.reached_s(level) is None):
        if halved.best.is_cut and halved.best.points[-1].updates < LEAST_UPDATES:
            return None
        level = reachable(halved.best, terms.num_test)
        halved = halved if level is None else halved.at(level)
    terms = replace(terms, level=level)
    found = yield from _with_all_seeds(attempts(base, candidate, terms), lengths[-1], halved, terms)
    if not terms.noise or level is None:
        return found
    rate, samples = nearest(halved, level)
    (tried,) = yield [attempts(base, candidate, replace(terms, level=None))(rate, samples, noise=True)]
    return found if tried is None else replace(found, noise=tried.noise)


def _with_all_seeds(
    attempt: _Attempt, samples: int, halved: Halved, terms: Terms
) -> Generator[list[Trial], Answers, Studied]:
    """What is found of the best rates with the other seeds, too."""
    runs = {rate: [tried] for rate, tried in halved.first(FINALISTS, terms.level).items()}
    if terms.level is not None and terms.seeds[1:]:
        there = [rate for rate, (tried,) in runs.items() if tried.reached_s(terms.level) is not None]
        # Somewhat longer: another seed may be a little later, which is not the same as never.
        longer = samples + samples // 2
        seeds = terms.seeds[1:]
        more = yield [attempt(rate, longer, seed) for rate in there for seed in seeds]
        for index, rate in enumerate(there):
            runs[rate] += filter(None, more[index * len(seeds) : (index + 1) * len(seeds)])
    found = [_studied(rate, terms.level, each, halved) for rate, each in runs.items()]
    return min(found, key=lambda each: (each.num_missing, each.mean_known_s, found.index(each)))


def confirmed(base: Config, candidate: Candidate, found: Studied, terms: Terms) -> Asks[Studied]:
    """The same, with more seeds: of those that are close to the first, chance must not choose."""
    attempt = attempts(base, candidate, terms)
    more = yield [attempt(found.lr, 2 * terms.samples, seed) for seed in terms.seeds]
    level = terms.level if terms.level is not None else math.inf
    return replace(found, times=(*found.times, *_times(more, level)))


class _Attempt(Protocol):
    def __call__(self, rate: float, samples: int, seed: int | None = None, *, noise: bool = False) -> Trial: ...


def attempts(base: Config, candidate: Candidate, terms: Terms) -> _Attempt:
    """The trial of a rate, for this many samples."""

    def attempt(rate: float, samples: int, seed: int | None = None, *, noise: bool = False) -> Trial:
        changes = {
            **_algorithm(candidate),
            "lr": rate,
            "seed": terms.seeds[0] if seed is None else seed,
            "samples": samples,
            "seconds": terms.seconds,
            "eval_every": terms.eval_every,
        }
        return Trial(base, changes, terms.level, terms.num_test, by_loss=terms.by_loss, noise=noise)

    return attempt


def _studied(lr: float, level: float | None, runs: list[Tried], halved: Halved) -> Studied:
    marks = [None if level is None else reached(run.points, level) for run in runs]
    samples = [mark.samples for mark in marks if mark is not None]
    return Studied(
        lr=lr,
        level=level,
        times=() if level is None else tuple(_times(runs, level)),
        samples=fmean(samples) if samples else None,
        at_edge=halved.is_edge(lr),
        best=max(each.best for each in halved.tried.values()),
        noise=None,
        seconds=runs[0].points[-1].seconds if runs[0].points else 0.0,
    )


def _times(runs: Iterable[Tried | None], level: float) -> Iterator[float | None]:
    """Seconds to the level, None for never; nothing for a run that was not there yet when the time was up."""
    for run in runs:
        if run is not None and ((seconds := run.reached_s(level)) is not None or not run.is_cut):
            yield seconds


def nearest(halved: Halved, level: float) -> tuple[float, int]:
    """The rate and the length of the run that came nearest to the target, and of several the one with the lowest rate:
    high rates make parameters jump back and forth, which looks like a large gradient.
    """
    # Within two points of a hundred they are equally near.
    rate, tried = min(halved.history, key=lambda each: (round(50 * abs(each[1].last[0] - level)), each[0]))
    return rate, max(1, tried.points[-1].samples)


def reachable(tried: Tried, num_test: int) -> float | None:
    """A target that a run has reached: nearly the best of its scores, as a round number; None: it has learnt nothing
    that could not be chance, with so many test samples.
    """
    start, best = tried.start, tried.best
    if not best > start:
        return None
    level = start + PART_OF_THE_WAY * (best - start)
    if tried.points[0].score == -tried.points[0].loss:  # no accuracy
        digits = 2 - math.floor(math.log10(abs(level))) if level else 0
        return float(math.floor(level * 10.0**digits) / 10.0**digits)
    if best - start < SURE * math.sqrt(best * (1 - best) / num_test):
        return None
    return math.floor(level * 200) / 200


def _algorithm(candidate: Candidate) -> dict[str, object]:
    return {"algorithm": candidate.algorithm, "parameters": dict(candidate.parameters)}


def _lengths(terms: Terms, samples_per_update: float) -> list[int]:
    """Of each round, in samples, but never so few that there is nothing to see."""
    least = math.ceil(4 * samples_per_update)
    return sorted({max(terms.samples // part, least) for part in terms.parts})
