"""The searches behind the map and the headlines: what they call best is, and nothing is found twice or lost."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ownpace import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from claims.at_best import Goal, OutOfTime, Search, reached_s  # type: ignore[import-not-found]
from claims.filling import Filling, read  # type: ignore[import-not-found]
from claims.running import do  # type: ignore[import-not-found]

DIGITS = Config(engine="virtual", algorithm="sync", momentum=0.9, samples=12_000, eval_every=500, detail=False)
LEVEL = 0.85


def test_a_level_is_reached_when_three_evaluations_are_there_on_average():
    curve = [[float(t), 0.0, score, 0.0] for t, score in enumerate((0.1, 0.95, 0.5, 0.8, 0.9, 0.9))]
    assert reached_s(curve, 0.85) == pytest.approx(4 + (0.85 - 2.2 / 3) / (2.6 / 3 - 2.2 / 3))
    assert reached_s(curve, 0.99) is None


def test_the_best_rate_is_found_from_afar_and_its_neighbours_are_later():
    search = Search(DIGITS, Goal(LEVEL, seeds=(0, 1)))
    found = search.find("sync", 0.004)
    times = {
        rate: reached_s(do(replace(DIGITS, lr=rate, seed=0)).curve, LEVEL) or math.inf
        for rate in (found.lr / 2, found.lr, 2 * found.lr)
    }
    assert min(times, key=lambda rate: times[rate]) == found.lr
    assert found.seconds[0] == pytest.approx(times[found.lr])
    assert len(found.seconds) == 2
    with pytest.raises(OutOfTime):
        replace(search, deadline=0.0).find("sync", found.lr)


@dataclass(frozen=True)
class Spot:
    """A place in which the answer is known at once."""

    number: int
    leaders = 1

    def labels(self):
        return "a", "b", "c"

    def guess(self, label, known):
        return float(len(known))

    def find(self, label, known, guess, deadline):
        if label == "b" and self.number == 2:
            raise OutOfTime
        return {"label": label, "lr": guess, "known": sorted(known), "seconds": [1.0]}


def test_what_is_known_is_kept_and_only_the_rest_is_searched(tmp_path):
    path, spots = tmp_path / "kept.jsonl", [Spot(1), Spot(2)]
    for _ in range(2):
        filling = Filling(spots, read(path, Spot), 60.0)
        filling.fill(path, 1)
        assert filling.num_failed == 0
    found = read(path, Spot)
    assert {spot: sorted(each) for spot, each in found.items()} == {Spot(1): ["a", "b", "c"], Spot(2): ["a", "c"]}
    assert len(path.read_text().splitlines()) == 5  # the second start found nothing new
    assert found[Spot(1)]["a"]["known"] == []
    assert "a" in found[Spot(1)]["c"]["known"]  # by who was first, later ones are cut off
