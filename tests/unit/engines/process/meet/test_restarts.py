"""When nodes that died are started again."""

from __future__ import annotations

from ownpace.engines.process.meet.restarts import Restarts


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def restarts() -> tuple[Restarts, list[str], Clock]:
    clock, started = Clock(), list[str]()
    made = Restarts(clock)
    made.names, made.start = {"a", "b"}, started.append
    return made, started, clock


def test_a_node_that_keeps_dying_is_started_later_and_later():
    made, started, clock = restarts()
    pauses: list[float] = []
    for _ in range(4):
        assert made.ask("a")
        begun = clock.now_s
        while len(started) == len(pauses):
            made.look()
            clock.now_s += 0.1
        pauses.append(round(clock.now_s - begun - 0.1, 1))
    assert pauses == [0.0, 0.5, 1.0, 2.0]
    assert not made.ask("of another host")


def test_a_node_that_only_seemed_to_be_gone_is_not_started_a_second_time():
    made, started, clock = restarts()
    made.ask("a")
    made.ask("b")
    made.cancel("a")
    made.look()
    clock.now_s += 100
    made.look()
    assert started == ["b"]
