"""How soon an algorithm is at the target in one cell, at its best learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from claims.running import Outcome, do
from maps.cells import ENTRANTS, LEVEL, Cell, Entrant
from ownpace import Config

SEEDS = (0, 1, 2)
STEP = 2.0
"""From one learning rate to the next."""
LOWEST, HIGHEST = 2.0**-13, 2.0**3
HOPELESS = 5.0
"""A run ends when it has taken so many times as long as the best of the cell so far."""
FAR = 2.0
"""Who takes so many times as long as the best of the cell so far runs with one seed only: that is known well enough."""
SMOOTH = 3
"""An accuracy is reached when so many evaluations in a row have it on average: no win by one lucky crossing."""


@dataclass(frozen=True)
class Found:
    """What became of one algorithm in one cell."""

    label: str
    lr: float
    """The best one; rates next to it on both sides were tried."""
    seconds: list[float | None]
    """Until the target was reached, with each seed; None: never, or hopelessly late."""
    accuracy: float
    """The best that was seen with the first seed."""
    samples_per_s: float
    updates_per_s: float
    share_of_limit: float
    tried: dict[str, float | None]
    """Learning rate → seconds, with the first seed."""

    @property
    def mean(self) -> float | None:
        """Over seeds; None if one of them was never there."""
        reached = [each for each in self.seconds if each is not None]
        return statistics.mean(reached) if len(reached) == len(self.seconds) else None


def search(cell: Cell, known: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Everybody in one cell who is not known yet, one after the other: who comes later is cut off by who was sooner."""
    found = [Found(**each) for each in known]
    for label in [label for label in ENTRANTS if label not in {each.label for each in found}]:
        best = min((each.mean for each in found if each.mean is not None), default=math.inf)
        found.append(_at_its_best(label, ENTRANTS[label], cell, best))
    return [asdict(each) for each in found]


def _at_its_best(label: str, entrant: Entrant, cell: Cell, best_s: float) -> Found:
    base, limit_s = entrant.config(cell), HOPELESS * best_s
    outcomes: dict[float, Outcome] = {}

    def attempt(lr: float) -> None:
        if lr not in outcomes:
            # Once one rate is known, others need not take longer than twice as long.
            known = [reached for each in outcomes.values() if (reached := reached_s(each)) is not None]
            outcomes[lr] = _run(base, lr, SEEDS[0], min([limit_s, *(2 * each for each in known)]))

    lr = _first_guess(entrant, cell)
    while True:
        for near in (lr, lr / STEP, lr * STEP):
            if LOWEST <= near <= HIGHEST:
                attempt(near)
        best = min(outcomes, key=lambda rate: _merit(outcomes[rate]))
        if best == lr:
            break
        lr = best
    first = outcomes[lr]
    took_s = reached_s(first)
    others = [_run(base, lr, seed, limit_s) for seed in SEEDS[1:] if took_s is not None and took_s < FAR * best_s]
    return Found(
        label,
        lr,
        [reached_s(each) for each in (first, *others)],
        max(_smooth([score for *_, score, _ in first.curve if score is not None]), default=0.0),
        first.samples_per_s,
        first.updates / first.seconds if first.seconds else 0.0,
        first.share_of_limit,
        {f"{rate:g}": reached_s(outcomes[rate]) for rate in sorted(outcomes)},
    )


def _first_guess(entrant: Entrant, cell: Cell) -> float:
    """Where updates of a worker's own gradient come from more workers, each has to be smaller."""
    alone = entrant.algorithm in ("async", "stale")
    guess = entrant.lr * (4 / cell.num_workers if alone else 1.0)
    return 2.0 ** round(math.log2(guess))


def _run(base: Config, lr: float, seed: int, limit_s: float) -> Outcome:
    return do(replace(base, lr=lr, seed=seed, seconds=None if math.isinf(limit_s) else limit_s))


def _merit(outcome: Outcome) -> tuple[float, float]:
    reached = reached_s(outcome)
    scores = [score for *_, score, _ in outcome.curve if score is not None]
    return (0.0, reached) if reached is not None else (1.0, -max(_smooth(scores), default=0.0))


def reached_s(outcome: Outcome) -> float | None:
    """Seconds until the mean of some evaluations was at the target; between two evaluations, on a straight line."""
    times = [point[0] for point in outcome.curve if point[2] is not None]
    scores = [point[2] for point in outcome.curve if point[2] is not None]
    smooth = _smooth([score for score in scores if score is not None])
    previous_t, previous = 0.0, 0.0
    for t, score in zip(times, smooth, strict=True):
        assert t is not None
        if score >= LEVEL:
            return previous_t + (t - previous_t) * (LEVEL - previous) / (score - previous)
        previous_t, previous = t, score
    return None


def _smooth(scores: Sequence[float]) -> list[float]:
    """The mean of each with those right before it."""
    return [statistics.mean(scores[max(0, end - SMOOTH) : end]) for end in range(1, len(scores) + 1)]
