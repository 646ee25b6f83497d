"""Events and their file."""

from __future__ import annotations

import pytest

from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError


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
        events.Generation(0.7, 2, "death", ["worker-1"], 4, 128, 1),
        events.End(0.6, "dead", events.Sums(0.6, 8, 1, 0.0, 0, 10.0, {"worker-0": events.Tally(8, 0.2, 0.1)})),
    ]
    assert [events.from_line(events.to_line(event)) for event in happened] == happened


def test_a_cut_off_event_file_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"fault","t":1.0,"who":"a","what":"kill"}\n{"kind":"wai', encoding="utf-8")
    with pytest.raises(InputError, match="line 2, is not an event"):
        list(events.read_events(path))
    with pytest.raises(InputError, match="there is no event file"):
        list(events.read_events(tmp_path / "nowhere"))
