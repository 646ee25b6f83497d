"""Events and their lines."""

from __future__ import annotations

from ownpace.core.contract import events


def test_events_survive_the_file():
    happened: list[events.Event] = [
        events.Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.9, {"workers": ["worker-0"]}),
        events.Load(0.0, 0.1, "worker-0", 8),
        events.Compute(0.1, 1 / 3, "worker-0", 8, 0),
        events.Transfer(1 / 3, 0.5, "all-reduce", "workers", 40),
        events.Wait(1 / 3, 0.5, "worker-0", "all-reduce"),
        events.Update(0.5, "worker-0", 1, 8, 8, 0),
        events.Evaluation(0.5, 8, 1, 0.25, None),
        events.Fault(0.6, "worker-0", "kill"),
        events.Omitted(0.1, 0.6, {"wait": 2}, {"wait": 0.5}, 0, 0),
        events.Generation(0.7, 2, "death", ["worker-1"], 4, 128, 1),
        events.End(0.6, "dead", events.Sums(0.6, 8, 1, 0.0, 0, 10.0, {"worker-0": events.Tally(8, 0.2, 0.1)})),
    ]
    assert [events.from_line(events.to_line(event)) for event in happened] == happened
