"""Successive halving finds the rate that a full grid finds, and with less work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ownpace.planning.driving import drive
from ownpace.planning.halving import Halved, cost, halve, octaves
from ownpace.planning.pool import Here
from ownpace.planning.timing import Timing
from ownpace.planning.trial import CurvePoint, Trial, Tried, try_out
from ownpace.run import Config

BASE = Config(task="quadratic", fleet="2,1", algorithm="sync", batch_size=16, samples=1, detail=False, engine="virtual")
LENGTHS = [500, 1000, 2000]


def attempt(rate: float, samples: int) -> Trial:
    return Trial(BASE, {"lr": rate, "samples": samples, "eval_every": 100}, by_loss=True)


def found(grid: list[float], level: float | None) -> Halved:
    return drive({"": halve(attempt, grid, LENGTHS, level)}, Here())[""]


@pytest.mark.parametrize("level", [None, -2.3], ids=["furthest", "first at a level"])
def test_it_finds_what_a_full_grid_finds(level):
    grid = octaves(0.06, 2, 5)
    full = {rate: try_out(attempt(rate, LENGTHS[-1])) for rate in grid}
    best = min(full, key=lambda rate: cost(full[rate], level))
    halved = found(grid, level)
    # Next to each other on the grid, two rates may be equally good.
    assert cost(full[halved.lr], level)[1] == pytest.approx(cost(full[best], level)[1], rel=0.15)
    spent = sum(tried.points[-1].samples for _, tried in halved.history)
    assert spent < 0.8 * len(grid) * LENGTHS[-1]


def test_a_grid_that_ends_too_early_grows():
    far_too_low = [2.0**-9, 2.0**-8]
    halved = found(far_too_low, None)
    assert halved.lr > 2.0**-6
    assert not halved.is_edge(halved.lr)


def tried(score: float, reason: str = "finished") -> Tried:
    points = tuple(CurvePoint(t, t, t, score, -score) for t in (1, 2))
    return Tried(points, reason, "", Timing(1.0, 1.0, 1.0, 1.0, None, 2))


def test_what_diverged_is_worse_than_anything():
    assert cost(tried(-100.0), None) < cost(tried(-1.0, "diverged"), None)
    assert cost(tried(0.5), 0.5) < cost(tried(0.9), 0.95)


def test_one_rate_is_taken_as_it_is():
    assert found([0.5], None).lr == 0.5


def test_when_the_time_is_up_the_best_so_far_counts():
    search = halve(attempt, octaves(0.5, 3, 2), LENGTHS, None)
    known = {trial.changes["lr"]: try_out(trial) for trial in next(search)}
    kept = [trial.changes["lr"] for trial in search.send(list(known.values()))]
    best = min(known, key=lambda rate: cost(known[rate], None))
    assert (kept[0], len(kept)) == (best, 3)
    # One was cut off before it got as far as it had been, and for the others there was no time at all.
    with pytest.raises(StopIteration) as end:
        search.send([replace(known[best], points=known[best].points[:1], reason="cut"), None, None])
    assert (end.value.value.lr, end.value.value.best) == (best, known[best])


def test_a_search_without_any_answer_has_found_nothing():
    search = halve(attempt, [0.1, 0.2], LENGTHS, None)
    next(search)
    with pytest.raises(StopIteration) as end:
        search.send([None, None])
    assert end.value.value is None
