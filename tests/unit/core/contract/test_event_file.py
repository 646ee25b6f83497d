"""Events read from files, whatever these hold."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import read_events, segment_header
from ownpace.core.contract.events import End, Evaluation, Event, Fault, Run, Sums, Tally, Transfer, Wait, to_line

RUN = Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.9, {"workers": ["worker-0"]})
END = End(0.6, "finished", Sums(0.6, 8, 1, 0.0, 0, 10.0, {"worker-0": Tally(8, 0.2, 0.1)}))
EVENTS: list[Event] = [
    RUN,
    Evaluation(0.0, 0, 0, 2.5, 0.1),
    Transfer(1 / 3, 0.5, "all-reduce", "workers", 40),
    Wait(0.1, 0.5, "worker-0", "all-reduce"),
    END,
]


def write(path, events, header=b""):
    path.write_bytes(header + b"".join(to_line(event).encode() + b"\n" for event in events))


def test_a_cut_off_event_file_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"kind":"fault","t":1.0,"who":"a","what":"kill"}\n{"kind":"wai', encoding="utf-8")
    with pytest.raises(InputError, match="line 2, is not an event"):
        list(read_events(path))
    with pytest.raises(InputError, match="there is no event file"):
        list(read_events(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="there is no event file"):
        list(read_events(tmp_path))


@pytest.mark.parametrize(
    "line",
    [
        *(b"null", b"5", b"[]", b'"run"', b"", b"\xff\xfe", b"[" * 100_000, b'{"kind":' * 100_000, b"9" * 5000),
        *(b'{"kind":"run"}', b'{"kind":"none"}', b'{"kind":["run"]}', b'{"kind":"fault","t":NaN,"who":"a","what":"b"}'),
        *(b'{"kind":"fault","t":1e999,"who":"a","what":"b"}', b'{"kind":"fault","t":"1","who":"a","what":"b"}'),
        *(b'{"kind":"fault","t":true,"who":"a","what":"b"}', b'{"kind":"fault","t":1,"who":null,"what":"b"}'),
        *(b'{"kind":"end","t":1,"reason":"","sums":5}', b'{"kind":"end","t":1,"reason":"","sums":{"workers":{"a":5}}}'),
        b'{"kind":"fault","t":1' + b"0" * 400 + b',"who":"a","what":"b"}',
    ],
    ids=lambda line: repr(line[:24]),
)
def test_whatever_is_not_an_event_is_bad_input(tmp_path, line):
    (tmp_path / "events.jsonl").write_bytes(line + b"\n")
    with pytest.raises(InputError, match="line 1, is not an event") as caught:
        list(read_events(tmp_path / "events.jsonl"))
    assert len(str(caught.value)) < 500


@settings(max_examples=100)
@given(st.data())
def test_damaged_files_are_read_or_refused(tmp_path_factory, data):
    text = bytearray("".join(to_line(event) + "\n" for event in EVENTS).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        text[place : place + data.draw(st.integers(0, 20))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"null", b"-1", b'"', b"{", b"}", b"[", b"1e400", b"NaN", b"\n"])
        )
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(bytes(text))
    with contextlib.suppress(InputError):
        for event in read_events(path):
            assert isinstance(json.loads(to_line(event)), dict)  # whatever is let in is a sound record


def test_the_latest_part_follows_where_the_first_file_is_cut(tmp_path):
    first, early, late = (Fault(float(t), "worker-0", "pause") for t in range(3))
    wait = Wait(2.0, 3.0, "worker-0", "all-reduce")
    write(tmp_path / "events.jsonl", [RUN, first, early, late, END])
    write(tmp_path / "events.4.jsonl", [early], segment_header(2))
    write(tmp_path / "events.5.jsonl", [late, wait, END], segment_header(3))
    assert list(read_events(tmp_path / "events.jsonl")) == [RUN, first, early, late, wait, END]
    (tmp_path / "events.4.jsonl").write_bytes(b"null\n")
    with pytest.raises(InputError, match="does not say which part of the run it holds"):
        list(read_events(tmp_path / "events.jsonl"))


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"wait","t":1e999,"until":2.0,"who":"a","what":"b"}',
        b'{"kind":"wait","t":1.0,"until":"2","who":"a","what":"b"}',
        b'{"kind":"wait","t":true,"until":2.0,"who":"a","what":"b"}',
        b'{"kind":"wait","t":1.0,"until":2.0,"who":"a","what":"b","why":"c"}',
        b'{"kind":"wait","t":1.0,"until":2.0,"who":"a"}',
        b'{"kind":"transfer","t":1.0,"until":2.0,"what":"send","who":["a",1],"nbytes":4}',
        b'{"kind":"transfer","t":1.0,"until":2.0,"what":"send","who":"a","nbytes":' + b"9" * 30 + b"}",
        b",".join([to_line(EVENTS[3]).encode()] * 2),
        to_line(EVENTS[3]).encode()[:-1],
    ],
)
def test_all_before_a_line_that_is_none_are_read_though_many_are_decoded_at_once(tmp_path, line):
    good = [EVENTS[0], *EVENTS[2:4] * 70]
    path = tmp_path / "events.jsonl"
    write(path, good)
    with path.open("ab") as file:
        file.write(line + b"\n" + to_line(END).encode() + b"\n")
    found: list[Event] = []
    with pytest.raises(InputError, match="line 142, is not an event"):
        found.extend(read_events(path))  # as far as it gets
    assert found == good
