"""Workers that a signal asks to end: whether the others go on, and when. The hub's part, without any process."""

from __future__ import annotations

import pytest
from tests.unit.engines.process.hub.test_generations import Led

from ownpace.core.contract.errors import Interrupted
from ownpace.engines.process.hub.departures import ALL_ASKED_S, TO_BORDER_S, Departures
from ownpace.engines.process.talk.control import Leaving, Stop
from ownpace.engines.process.talk.regrouping import Regroup

TERM = Leaving("SIGTERM", [])
BORDER = (Stop(is_border=True), ["a", "b", "c"])


class Asked:
    """A run of three workers, and a clock."""

    def __init__(self, algorithm: str = "sync", **config: object) -> None:
        self.led = Led(algorithm, **config)
        self.now_s = 100.0
        self.departures = Departures(self.led.generations, lambda: self.now_s)

    def after(self, seconds: float) -> list[str]:
        """Who has to go at once, this much later."""
        self.now_s += seconds
        return self.departures.look()

    @property
    def borders(self) -> list[object]:
        return [told for told in self.led.told if isinstance(told[0], Stop)]


def test_who_is_asked_to_end_is_let_go_at_a_border_a_moment_later():
    asked = Asked()
    asked.departures.take("b", TERM)
    assert asked.after(ALL_ASKED_S / 2) == []
    assert asked.borders == [], "rank 0 may get a signal, too"
    assert asked.departures.at_border() == [], "a border for another reason comes too soon"
    assert asked.after(ALL_ASKED_S) == []
    assert asked.after(0.0) == []
    assert asked.borders == [BORDER], "once"
    assert asked.departures.at_border() == ["b"]
    asked.led.generations.next(["b"])
    assert asked.led.generations.why == "leave"
    assert asked.led.last(Regroup)[1] == ["a", "c"]
    assert asked.after(100.0) == []
    assert asked.departures.ends_run == ""


def test_a_border_that_takes_too_long_is_not_waited_for():
    asked = Asked()
    asked.departures.take("b", TERM)
    assert asked.after(ALL_ASKED_S) == []
    assert asked.after(TO_BORDER_S) == ["b"]


def test_several_leave_together_and_each_has_its_moment():
    asked = Asked()
    asked.departures.take("b", TERM)
    asked.after(ALL_ASKED_S)
    asked.departures.take("c", TERM)
    assert asked.departures.at_border() == ["b"]
    asked.after(ALL_ASKED_S)
    assert asked.departures.at_border() == ["b", "c"]


@pytest.mark.parametrize("config", [{"on_failure": "stop"}, {"min_workers": 3}])
def test_where_the_others_cannot_go_on_the_run_ends_and_it_is_said_for_whom(config):
    asked = Asked(**config)
    asked.departures.take("b", Leaving("SIGINT", []))
    assert asked.after(0.0) == []
    assert asked.departures.ends_run == "b got SIGINT, and the others cannot go on without it"
    asked.after(ALL_ASKED_S + TO_BORDER_S)
    assert asked.borders == []
    assert asked.departures.at_border() == []


def test_too_many_at_once_end_the_run_though_one_alone_could_go():
    asked = Asked(min_workers=2)
    asked.departures.take("b", TERM)
    asked.after(0.0)
    assert asked.departures.ends_run == ""
    asked.departures.take("c", TERM)
    asked.after(0.0)
    assert asked.departures.ends_run == "b got SIGTERM and c got SIGTERM, and the others cannot go on without them"


def test_who_takes_a_server_along_that_the_others_need_is_not_let_go():
    asked = Asked("async")
    asked.departures.take("b", Leaving("SIGTERM", ["server-0"]))
    asked.after(0.0)
    assert asked.departures.ends_run.startswith("b got SIGTERM")


def test_nobody_leaves_a_run_that_ends_anyway():
    asked = Asked()
    asked.departures.take("b", TERM)
    asked.departures.is_moot = True
    assert asked.after(ALL_ASKED_S + TO_BORDER_S) == []
    assert asked.departures.at_border() == []
    asked.departures.is_moot = False
    asked.led.generations.release()
    assert asked.after(1.0) == []
    assert asked.departures.ends_run == ""


def test_whoever_is_gone_after_a_signal_has_left():
    asked = Asked()
    assert asked.departures.left("b") is None
    asked.departures.take("b", TERM)
    left = asked.departures.left("b")
    assert isinstance(left, Interrupted)
    assert (str(left), left.blame) == ("b left after SIGTERM", "b")
    asked.departures.forget("b")  # started again
    assert asked.departures.left("b") is None
