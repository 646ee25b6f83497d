"""Events on their way to the disk: bounded, resumable, and cut off by a full disk without harm."""

from __future__ import annotations

import dataclasses

import pytest
from tests.limits import largest_file

from ownpace.core.contract.event_file import read_events, segments
from ownpace.core.contract.events import Compute, Detail, End, Evaluation, Event, Omitted, Run, Sums, Tally, Update
from ownpace.run.event_log import EventLog, Position

RUN = Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.9, {"workers": ["worker-0"]})
LIMIT = 20_000


def a_run(count: int = 1000) -> list[Event]:
    events: list[Event] = [RUN]
    for number in range(count):
        events.append(Compute(number, number + 0.5, "worker-0", 8, number))
        events.append(Update(number + 0.5, "worker-0", number + 1, 8, 8 * number + 8, 0))
        if number % 50 == 0:
            events.append(Evaluation(number + 0.5, 8 * number + 8, number + 1, 0.5, 0.9))
    sums = Sums(count, 8 * count, count, 0.0, 0, 16.0, {"worker-0": Tally(8 * count, count / 2, 0.0)})
    return [*events, End(float(count), "finished", sums)]


def write(folder, events, limit=LIMIT, **more) -> EventLog:
    folder.mkdir(exist_ok=True)
    log = EventLog(folder, limit, **more)
    for event in events:
        log.write(event)
    return log


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_long_run_keeps_its_beginning_its_end_and_sums_of_the_rest(tmp_path):
    happened = a_run()
    write(tmp_path, happened).close()
    assert len(segments(tmp_path)) == 2
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1.5 * LIMIT  # rare records come on top
    read = list(read_events(tmp_path / "events.jsonl"))
    rest = [event for event in read if not isinstance(event, Omitted)]
    omitted = [event for event in read if isinstance(event, Omitted)]
    # In order, and nothing twice; what is not detail is all there.
    assert rest == [event for event in happened if event in rest]
    assert [e for e in rest if not isinstance(e, Detail)] == [e for e in happened if not isinstance(e, Detail)]
    assert rest[:100] == happened[:100]
    assert rest[-50:] == happened[-50:]
    assert len(rest) < len(happened) / 2
    # Nothing is unaccounted for.
    missing = [event for event in happened if event not in rest]
    computed = [event for event in missing if isinstance(event, Compute)]
    assert sum(event.counts["compute"] for event in omitted) == len(computed)
    assert sum(event.seconds["compute"] for event in omitted) == pytest.approx(0.5 * len(computed))
    assert sum(event.computed_samples for event in omitted) == 8 * len(computed)
    assert sum(event.updated_samples for event in omitted) == 8 * (len(missing) - len(computed))
    # Whoever reads the first file alone can add up everything, too.
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "events.jsonl").rename(alone / "events.jsonl")
    first = list(read_events(alone / "events.jsonl"))
    updates = sum(event.samples if isinstance(event, Update) else 0 for event in first)
    assert updates + sum(event.updated_samples for event in first if isinstance(event, Omitted)) == 8000
    assert isinstance(first[-1], End)


def test_without_a_limit_or_below_it_there_is_one_file(tmp_path):
    write(tmp_path / "none", a_run(), 0).close()
    write(tmp_path / "high", a_run(), 1_000_000).close()
    assert files(tmp_path / "none") == files(tmp_path / "high")
    assert list(read_events(tmp_path / "none" / "events.jsonl")) == a_run()


@pytest.mark.parametrize("at", [3, 150, 700, 1999])
def test_a_run_goes_on_from_any_position_as_if_it_had_never_stopped(tmp_path, at):
    happened = a_run()
    write(tmp_path / "whole", happened).close()
    log = write(tmp_path / "cut", happened[:at])
    position = Position(**dataclasses.asdict(log.position()))  # through a file, say
    for event in happened[at : at + 40]:  # after the checkpoint, and lost
        log.write(event)
    log.close()
    write(tmp_path / "cut", happened[at:], position=position).close()
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_full_disk_ends_the_records_and_says_so_once(tmp_path, caplog):
    happened = a_run()
    log = EventLog(tmp_path)
    with largest_file(60_000):
        for event in happened:
            log.write(event)
        assert log.error is not None
    log.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "File too large" in line
    assert "training goes on" in line
    *rest, omitted, end = read_events(tmp_path / "events.jsonl")
    detail = [event for event in rest if isinstance(event, Detail)]
    assert len(detail) > 300
    assert rest == [event for event in happened if event in rest]
    assert end == happened[-1]
    assert isinstance(omitted, Omitted)
    assert omitted.why == "File too large"
    first_missing = [event for event in happened if isinstance(event, Detail)][len(detail)]
    assert omitted.t == first_missing.t
    assert f"from {first_missing.t:.3f} s" in line


@pytest.mark.parametrize("closed", [False, True])
def test_detail_gives_way_to_the_model(tmp_path, closed):
    happened = a_run()
    log = write(tmp_path, happened)
    if closed:
        log.close()
    log.make_room()
    log.close()
    assert log.error is not None
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]
    kept = list(read_events(tmp_path / "events.jsonl"))
    assert not any(isinstance(event, Detail) for event in kept)
    assert [e for e in kept if not isinstance(e, Omitted)] == [e for e in happened if not isinstance(e, Detail)]
    assert sum(event.updated_samples for event in kept if isinstance(event, Omitted)) == 8000
    assert isinstance(kept[-1], End)
