"""Searches side by side, in the time there is."""

from __future__ import annotations

import math
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from ownpace.planning import driving
from ownpace.planning.deadlines import Deadlines
from ownpace.planning.driving import Asks, drive
from ownpace.planning.pool import Here
from ownpace.planning.progress import PlanProgress
from ownpace.planning.stage_driver import StageDriver
from ownpace.planning.trial import Trial, Tried, try_out
from ownpace.run import Config

TRIAL = Trial(Config(task="quadratic", samples=64, timing_only=True))


def asking(*numbers: int) -> Asks[int]:
    """Asks for so many trials, one round after the other, and returns how many were answered."""
    answered = 0
    for number in numbers:
        answered += sum(tried is not None for tried in (yield [TRIAL] * number))
    return answered or None


class Clock:
    """Time that passes as trials are made: a second for each."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(driving, "time", SimpleNamespace(monotonic=lambda: self.now))


class Timed(Here):
    """Carries trials out while a clock goes on."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def submit(self, trial: Trial, deadline: float | None = None) -> Future[Tried]:
        self.clock.now += 1
        return super().submit(trial)


class Stuck(Here):
    """Takes a trial, and never gives an answer."""

    given_up = 0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def submit(self, trial: Trial, deadline: float | None = None) -> Future[Tried]:
        self.clock.now = 10
        return Future()

    def give_up(self) -> None:
        self.given_up += 1


def test_every_search_gets_its_answers_also_where_it_asks_for_nothing():
    assert drive({"a": asking(2, 0, 1), "b": asking(1, 0)}, Here()) == {"a": 3, "b": 1}


def test_who_finds_nothing_is_not_among_what_was_found():
    assert drive({"b": asking(0), "c": asking()}, Here()) == {}


@pytest.mark.parametrize(("seconds", "found"), [(0, {}), (3, {"a": 1, "b": 2}), (math.inf, {"a": 1, "b": 10})])
def test_when_the_time_is_up_nothing_more_is_tried_and_what_is_known_is_found(monkeypatch, seconds, found):
    clock = Clock(monkeypatch)
    assert drive({"a": asking(1), "b": asking(5, 5)}, Timed(clock), deadline=seconds) == found
    assert clock.now == sum(found.values())


def test_what_has_begun_is_finished_first(monkeypatch):
    clock = Clock(monkeypatch)
    ends: list[tuple[str, float]] = []
    searches = {name: asking(1, 2) for name in "abc"}
    drive(searches, Timed(clock), on_found=lambda name, _: ends.append((name, clock.now)))
    assert ends == [("a", 3), ("b", 6), ("c", 9)]


def test_at_ctrl_c_searches_end_with_what_they_know():
    made: list[str] = []
    found: dict[str, int] = {}

    def on_trial(name: str) -> None:
        made.append(name)
        if len(made) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive({"a": asking(1, 1), "b": asking(1)}, Here(), on_trial, on_found=found.__setitem__)
    assert found == {"a": 2}


def test_what_never_ends_is_given_up(monkeypatch):
    pool = Stuck(Clock(monkeypatch))
    assert drive({"a": asking(1)}, pool, deadline=1.0) == {}
    assert pool.given_up == 1


def test_a_trial_ends_in_time_with_what_it_knows():
    trial = Trial(Config(task="quadratic", engine="virtual", fleet="2,1", samples=4000, eval_every=100))
    cut, whole = try_out(trial, deadline=0.0), try_out(trial)
    assert (cut.reason, whole.reason) == ("cut", "finished")
    assert cut.points == whole.points[: len(cut.points)]
    assert len(cut.points) < len(whole.points)


def test_who_waits_hears_of_it_and_what_was_cut_off_is_said():
    told: list[PlanProgress] = []
    stages = StageDriver(Here(), Deadlines(0.0, 7.0, asks=False), {}, [], told.append)
    assert stages.drive("speeds", {"a": asking(2)}, 2) == {"a": 2}
    assert (told[0].done, told[-1].done, stages.uncertain) == (0, 2, [])
    assert (told[-1].note, told[-1].limit_s) == ("a", 7.0)
    assert stages.drive("what if", {"b": asking(1)}, 1, deadline=0.0, missed="not answered") == {}
    assert stages.uncertain == ["b: not answered, the time was up; give more with --seconds"]
