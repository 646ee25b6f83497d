"""A run's records as they are written."""

from __future__ import annotations

import os
from pathlib import Path

from ownpace.core.contract.events import Compute, Evaluation, Event, to_line
from ownpace.run.event_log import EventLog
from ownpace.run.following import Following


def compute(at: int) -> Compute:
    return Compute(float(at), at + 0.5, "worker-0", 8, at)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_every_event_comes_once_and_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "events.jsonl"
    following = Following(tmp_path)
    assert list(following.new_events()) == []  # there is no file yet
    line = to_line(compute(1)) + "\n"
    append(path, to_line(compute(0)) + "\n" + line[:30])
    assert list(following.new_events()) == [compute(0)]
    assert list(following.new_events()) == []
    append(path, line[30:] + "not an event\n" + to_line(compute(2)) + "\n")
    assert list(following.new_events()) == [compute(1), compute(2)]


def test_the_latest_part_of_a_long_run_is_followed_too(tmp_path):
    log, following = EventLog(tmp_path, 8_000), Following(tmp_path)
    found: list[Event] = []
    evaluation = Evaluation(150.0, 8, 1, 1.0, 0.5)
    for at in range(300):
        log.write(compute(at))
        if at == 150:
            log.write(evaluation)
        if at % 10 == 0:
            log.position()  # which writes what waits
            found += following.new_events()
    log.close()
    found += following.new_events()
    assert found.count(evaluation) == 1  # it stands in two files
    computed = [event.version for event in found if isinstance(event, Compute)]
    assert computed == sorted(set(computed))
    assert computed[-1] == 299


def test_a_run_that_was_replaced_or_cut_is_read_anew(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, to_line(compute(0)) + "\n" + to_line(compute(1)) + "\n")
    following = Following(tmp_path)
    assert not following.began_anew()
    assert len(list(following.new_events())) == 2
    os.truncate(path, len(to_line(compute(0))) + 1)  # as a run does that goes on from its checkpoint
    assert following.began_anew()
    assert list(following.new_events()) == [compute(0)]
    other = tmp_path / "other"
    append(other, "".join(to_line(compute(at)) + "\n" for at in range(5)))
    other.replace(path)
    assert following.began_anew()
    assert len(list(following.new_events())) == 5
    assert not following.began_anew()


def test_of_what_was_there_before_only_the_latest_detail_is_decoded(tmp_path):
    evaluation = Evaluation(0.0, 8, 1, 1.0, 0.5)
    lines = [to_line(evaluation), *(to_line(compute(at)) for at in range(80_000))]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    found = list(Following(tmp_path).new_events())
    assert found[0] == evaluation
    assert found[-1] == compute(79_999)
    assert len(found) < 60_000
