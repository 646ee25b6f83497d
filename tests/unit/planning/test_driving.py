"""Searches side by side, in the time there is."""

from __future__ import annotations

import time

from ownpace.planning.driving import Asks, drive
from ownpace.planning.pool import Here
from ownpace.planning.progress import PlanProgress
from ownpace.planning.stage_driver import StageDriver
from ownpace.planning.trial import Trial
from ownpace.run import Config

TRIAL = Trial(Config(task="quadratic", samples=64, timing_only=True))


def asking(*numbers: int) -> Asks[int]:
    """Asks for so many trials, one round after the other, and returns how many were answered."""
    answered = 0
    for number in numbers:
        answered += len((yield [TRIAL] * number))
    return answered


def test_every_search_gets_its_answers_also_where_it_asks_for_nothing():
    assert drive({"a": asking(2, 0, 1), "b": asking(0), "c": asking()}, Here()) == {"a": 3, "b": 0, "c": 0}


def test_no_trial_begins_when_the_time_is_up():
    made: list[int] = []
    found = drive({"a": asking(1), "b": asking(5)}, Here(), lambda: made.append(1), lambda: len(made) < 3)
    assert (found, len(made)) == ({"a": 1}, 3)


def test_what_has_begun_is_finished_first():
    done: list[str] = []
    asked = {name: asking(1, 1, 1) for name in "abc"}
    drive(asked, Here(), on_found=lambda name, _: done.append(name), go_on=lambda: len(done) < 2)
    made: list[int] = []
    found = drive({name: asking(1, 2) for name in "abc"}, Here(), lambda: made.append(1), lambda: len(made) < 6)
    assert (done, found) == (["a", "b"], {"a": 3, "b": 3})


def test_who_waits_hears_of_it_and_what_was_cut_off_is_said():
    told: list[PlanProgress] = []
    driver = StageDriver({}, [], told.append)
    assert driver.drive("speeds", {"a": asking(2)}, Here(), 2) == {"a": 2}
    assert (told[0].done, told[-1].done, driver.uncertain) == (0, 2, [])
    late = driver.drive("what if", {"b": asking(1)}, Here(), 1, deadline=time.monotonic(), missed="not answered")
    assert late == {}
    assert driver.uncertain == ["b: not answered, the time was up; give more with --seconds"]
