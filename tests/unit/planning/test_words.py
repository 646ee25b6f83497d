"""A plan in words: what a friend would say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ownpace.fleet import Fleet, Machine
from ownpace.planning.candidates import Candidate
from ownpace.planning.elsewhere import Elsewhere
from ownpace.planning.ranking import Known, finished_plan
from ownpace.planning.study import Studied
from ownpace.planning.timing import Timing
from ownpace.run import Config

FLEET = Fleet(machine=(Machine(name="new", samples_per_s=2000), Machine(name="old", samples_per_s=1000)))
SPEED = Timing(3000.0, 10.0, 96.0, 1.0, None, 50)


def known(spread: float, gains: Mapping[str, float], times: tuple[float, ...]) -> Known:
    """What is known where the choice took so many seconds with each seed, and of other fleets."""
    studied = Studied(0.5, 0.9, times, 1000.0, False, 0.95, None, times[0])
    unfinished = replace(studied, times=())  # found, but not confirmed when the time was up
    mean_s = sum(times) / len(times)
    return Known(
        config=Config(),
        fleet=FLEET,
        left_out={},
        candidates={name: Candidate(name) for name in ("balanced", "diloco")},
        timings={"balanced": SPEED, "diloco": SPEED},
        studied={"balanced": studied, "diloco": unfinished},
        others={name: Elsewhere("balanced", SPEED, mean_s / gain, spread or None) for name, gain in gains.items()},
        questions=tuple(gains),
        pilot="balanced",
    )


@pytest.mark.parametrize(
    ("spread", "gain", "times", "said"),
    [
        (0.01, 1.3, (1.0, 1.01, 0.99), "Leave out old (1 machine): without, 23% less time."),
        (0.4, 1.15, (1.0, 1.4, 0.6), "old (1 machine) may stay or go: without, 13% less time; that may be chance."),
        (0.0, 1.15, (1.0,), "old (1 machine) may stay or go: without, 13% less time; that may be chance."),
        (0.0, 1.5, (1.0,), "Leave out old (1 machine): without, 33% less time."),
        (0.0, 0.5, (1.0,), "Keep old (1 machine): without, 100% more time."),
    ],
)
def test_what_chance_may_explain_is_no_advice_and_an_unfinished_search_no_error(spread, gain, times, said):
    assert said in finished_plan(known(spread, {"drop:old": gain}, times), 1.0).verdict


def test_who_was_given_up_after_one_seed_makes_the_others_times_no_less_sure():
    found = known(0.4, {"drop:old": 1.5}, (1.0, 1.4, 0.6))
    found.studied["diloco"] = replace(found.studied["balanced"], times=(None,))
    plan = finished_plan(found, 1.0)
    assert plan.settings["seeds"] == 3
    assert "Leave out old (1 machine): without, 33% less time." in plan.verdict


def test_of_two_classes_that_may_go_one_goes():
    plan = finished_plan(known(0.01, {"drop:new": 1.3, "drop:old": 1.5}, (1.0, 1.01, 0.99)), 1.0)
    assert "Or leave out new (1 machine): without, 23% less time." in plan.verdict
    assert "\nLeave out old (1 machine): without, 33% less time." in plan.verdict
