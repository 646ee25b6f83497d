"""Files of events that are too long to be read in full."""

from __future__ import annotations

from ownpace.core.contract.event_file import read_events
from ownpace.core.contract.events import Compute, Evaluation, Event, Fault, Omitted, Update, to_line


def test_of_a_long_file_detail_is_read_at_both_ends_and_the_rest_everywhere(tmp_path):
    events: list[Event] = []
    for at in range(1000):
        events += [Compute(at, at + 0.5, "worker-0", 8, at), Update(at + 0.5, "worker-0", at, 8, 8 * at, 0)]
        if at % 100 == 50:
            events += [Evaluation(at + 0.5, 8 * at, at, 1.0, 0.5), Fault(at + 0.5, "worker-0", "pause")]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(to_line(event) + "\n" for event in events))
    assert list(read_events(path)) == list(read_events(path, path.stat().st_size)) == events

    found = list(read_events(path, 20_000))
    kept = [event for event in found if not isinstance(event, Omitted)]
    assert [event for event in kept if isinstance(event, Evaluation | Fault)] == [
        event for event in events if isinstance(event, Evaluation | Fault)
    ]
    assert kept[:50] == events[:50]
    assert kept[-50:] == events[-50:]
    detail = [event for event in kept if isinstance(event, Compute | Update)]
    assert sum(len(to_line(event)) + 1 for event in detail) <= 20_000
    (omitted,) = [event for event in found if isinstance(event, Omitted)]
    last_before = max(event.t for event in detail if event.t <= omitted.t)
    first_after = min(event.t for event in detail if event.t > omitted.t)
    assert last_before <= omitted.t < omitted.until <= first_after
