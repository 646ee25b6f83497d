"""Virtual time itself."""

from __future__ import annotations

from functools import partial

import pytest

from ownpace.engines.virtual.clock import Answer, Call, Clock, EmptySchedule


def test_events_of_simpy_and_ours_share_one_order():
    clock, seen = Clock(), []

    def simpy_process():
        yield clock.timeout(1)
        seen.append(("simpy", clock.now))
        yield clock.timeout(2)
        seen.append(("simpy", clock.now))

    clock.process(simpy_process())
    for time in (2.0, 0.5, 3.0):
        clock.at(time, Call(lambda: seen.append(("ours", clock.now))))
    clock.at_last(1.5, Call(lambda: seen.append(("lane", clock.now))))
    clock.at_last(2.5, Call(lambda: seen.append(("lane", clock.now))))
    clock.at_last(2.25, Call(lambda: seen.append(("lane out of order", clock.now))))
    with pytest.raises(EmptySchedule):
        clock.go_on()
    assert seen == [
        ("ours", 0.5),
        ("simpy", 1),
        ("lane", 1.5),
        ("ours", 2.0),
        ("lane out of order", 2.25),
        ("lane", 2.5),
        ("ours", 3.0),
        ("simpy", 3),
    ]


def test_ties_happen_in_the_order_of_scheduling():
    clock = Clock()
    seen: list[int] = []
    for number, schedule in enumerate((clock.at, clock.at_last, clock.at, clock.at_last)):
        schedule(1.0, Call(partial(seen.append, number)))
    with pytest.raises(EmptySchedule):
        clock.go_on()
    assert seen == [0, 1, 2, 3]


def test_an_answer_wakes_whoever_awaits_it_at_once():
    clock, seen = Clock(), []

    class Plain(Answer[int]):
        def __await__(self):
            if not self.done:
                yield self
            return self.value

    answer: Plain = Plain()

    async def waits():
        seen.append(await answer)
        seen.append(await answer)  # a second time, it is there already
        clock.going_on = False

    clock.start(waits(), lambda: seen.append("ended"))
    clock.at(2.0, Call(lambda: answer.resolve(7)))
    clock.go_on()
    assert seen == [7, 7, "ended"]
    assert clock.now == 2.0
