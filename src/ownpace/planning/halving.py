"""The best learning rate of an algorithm, by successive halving over a grid in octaves.

All rates of the grid are tried for a short while; the better half of them for twice as long; and so on, until those
that are left have run for the whole length, or one has reached the level that is wanted. While the best rate of the
first round is at the edge of the grid, the grid grows there: no answer is one that merely happened to be the last.
When the time is up, the best of what is known counts.

A search *asks*: it is a generator that yields trials and is sent what came out, so that whoever drives it may run many
searches side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from ownpace.planning.driving import Answers
from ownpace.planning.trial import Trial, Tried

OCTAVE = 2.0
LOWEST, HIGHEST = OCTAVE**-20, OCTAVE**6
LEAST_KEPT = 2
"""So many rates, at least, are tried to the end: what is best for a short while may not be best for long."""
Asking = Generator[list[Trial], Answers, "Halved | None"]
Attempt = Callable[[float, int], Trial]
"""The trial of a rate, for this many samples."""


@dataclass(frozen=True)
class Halved:
    """What a search has found."""

    lr: float
    tried: dict[float, Tried]
    """The longest trial of each rate."""
    history: list[tuple[float, Tried]]
    """All trials, with their rates."""

    @property
    def best(self) -> Tried:
        """The trial of the best rate."""
        return self.tried[self.lr]

    def at(self, level: float) -> Halved:
        """The same, where the time to this level is what counts."""
        return replace(self, lr=min(self.tried, key=lambda rate: cost(self.tried[rate], level)))

    def first(self, most: int, level: float | None) -> dict[float, Tried]:
        """The best rate, and next to it those that are the best of its neighbours, this many in all."""
        near = [rate for rate in (self.lr / OCTAVE, self.lr * OCTAVE) if rate in self.tried]
        rates = [self.lr, *sorted(near, key=lambda rate: cost(self.tried[rate], level))]
        return {rate: self.tried[rate] for rate in rates[:most]}

    def is_edge(self, rate: float) -> bool:
        """Whether no rate beyond this one was tried, on one of its sides."""
        return len(self.tried) > 1 and rate in (min(self.tried), max(self.tried))


def octaves(guess: float, below: int, above: int) -> list[float]:
    """Powers of two around a guess.

    >>> octaves(0.06, 1, 2)
    [0.03125, 0.0625, 0.125, 0.25]
    """
    middle = round(math.log2(guess))
    rates = [OCTAVE**power for power in range(middle - below, middle + above + 1)]
    return [rate for rate in rates if LOWEST <= rate <= HIGHEST]


def cost(tried: Tried, level: float | None) -> tuple[float, ...]:
    """Less is better: the time to the level, or else how bad the score was in the end."""
    reached_s = None if level is None else tried.reached_s(level)
    if reached_s is not None:
        return (0.0, reached_s)
    score, negative_loss = tried.last
    return (1.0, -score, -negative_loss)


def halve(attempt: Attempt, grid: Sequence[float], lengths: Sequence[int], level: float | None) -> Asking:
    """Ask for trials until the best rate is known.

    Args:
        attempt: The trial of a rate for this many samples.
        grid: The rates to begin with, in octaves.
        lengths: Samples of each round, ascending.
        level: The score to be reached (None: the best score at the end counts).
    """
    seen = _Seen(level)
    wanted = list(grid)
    while wanted:
        if not seen.take(wanted, (yield [attempt(rate, lengths[0]) for rate in wanted])):
            return seen.halved(seen.tried)
        wanted = _beyond(seen.best(seen.tried), seen.tried)
    kept = list(seen.tried)
    for length in lengths[1:]:
        # All have run equally long: who has not been there yet is later than who has.
        if level is not None and any(seen.tried[rate].reached_s(level) is not None for rate in kept):
            break
        kept = sorted(kept, key=seen.merit)[: max(LEAST_KEPT, math.ceil(len(kept) / 2))]
        if not seen.take(kept, (yield [attempt(rate, length) for rate in kept])):
            return seen.halved(kept)
    # A rate that only the longest trials have shown to be the best may stand at the edge, too.
    while wanted := _beyond(seen.best(kept), seen.tried)[:1]:
        if not seen.take(wanted, (yield [attempt(rate, lengths[-1]) for rate in wanted])):
            break
        kept += wanted
    return seen.halved(kept)


class _Seen:
    """What has come out so far."""

    def __init__(self, level: float | None) -> None:
        self.tried: dict[float, Tried] = {}
        self._level = level
        self._history: list[tuple[float, Tried]] = []

    def take(self, rates: list[float], outcomes: Answers) -> bool:
        """Note what came out; False: the time was up."""
        for rate, tried in zip(rates, outcomes, strict=True):
            if tried is None:
                continue
            self._history.append((rate, tried))
            # What was cut off may know less than a shorter trial that was not.
            if rate not in self.tried or not tried.is_cut or len(tried.points) > len(self.tried[rate].points):
                self.tried[rate] = tried
        return None not in outcomes

    def merit(self, rate: float) -> tuple[float, ...]:
        return cost(self.tried[rate], self._level)

    def best(self, rates: Iterable[float]) -> float:
        return min(rates, key=self.merit)

    def halved(self, rates: Iterable[float]) -> Halved | None:
        """What was found among these."""
        return Halved(self.best(rates), self.tried, self._history) if self.tried else None


def _beyond(best: float, tried: dict[float, Tried]) -> list[float]:
    """The next rates where the best one is at the edge of those that were tried."""
    if len(tried) == 1:
        return []  # nothing was to be searched
    step = OCTAVE if best == max(tried) else 1 / OCTAVE if best == min(tried) else None
    return [] if step is None else [rate for rate in (best * step, best * step**2) if LOWEST <= rate <= HIGHEST]
