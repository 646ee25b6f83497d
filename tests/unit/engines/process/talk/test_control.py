"""Control messages: each comes back as what it was, and nothing else passes for one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import BY_CODE, DivergenceError, NodeFailed, WireError
from ownpace.engines.ledger import UpdateTotals
from ownpace.engines.process.talk import control, rank_control, regrouping, replica_control
from ownpace.engines.process.talk.control import Failed, Hello, Report, Snapshot, WorkDone
from ownpace.engines.process.talk.control_record import KINDS, from_record, to_record

EXAMPLES: list[control.Control] = [
    Hello({"model": "12 parameters"}),
    control.Welcome(),
    control.Refuse("the ranks do not fit together"),
    control.ClockRequest(),
    control.ClockAnswer(12.5),
    control.Prepared(),
    control.Start(3.25),
    Report(1.5, UpdateTotals(3, 96, 1, 1, 1.25, True), WorkDone(96, 1.0, 0.0, None, [[0.0, 0.5]]), ['{"kind":"x"}']),
    Snapshot(1.0, 32, 1, 0, final=True),
    control.WorkerBuffers(),
    control.Stop(),
    control.Leaving("SIGTERM", ["server-0"]),
    control.Dismiss("SIGTERM"),
    control.Pull(),
    control.Pulled(1, 7, 640),
    control.PullState(),
    control.StatePart(3, "exp_avg", [2, 3], None, 7),
    replica_control.Checksums(64, [1, -(2**63)]),
    replica_control.FirstReplica(2, 64),
    replica_control.Apart(64, 32, 1, 3e-8, 1e-5),
    control.Ended([3, 2**63 - 1], 96, True),
    control.Finished(),
    regrouping.Lost(2, "a member of workers is gone"),
    regrouping.Regroup(3),
    regrouping.Standing(3, False, 7, 640, 0.5, [320, 320], [-1, 2**62]),
    regrouping.RegroupPlan(
        3, ["worker-0", "worker-2"], None, "worker-0", ["worker-2"], [], [4, 8], 640, 7, wants_state=True
    ),
    regrouping.StateOutline(3, "[]", ["0/values"]),
    regrouping.StateTensor("float32", [2, 3], is_last=True),
    regrouping.StateInMemory(3, "[]", ["0/values"], ["float32"], [[2, 3]], 4711, 12),
    regrouping.DeclaredDead(),
    control.Release(),
    control.Goodbye(["{}"]),
    Failed("diverged", "the loss is nan"),
    control.GiveUp("machine-died", "worker-1 is gone"),
    rank_control.Together(3, "loop", 2, {"epochs": "1"}),
    rank_control.Agreed(3),
    rank_control.Rejoin(),
    rank_control.Past(["join", "loop"], [[0, 1, 2], [0, 2]], {"epochs": "1"}, {"updates": 7.0}),
    rank_control.Saved("runs/fleet.pt"),
    rank_control.Parted(),
]


def test_there_is_an_example_of_every_kind():
    assert {type(example) for example in EXAMPLES} == set(KINDS.values())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_what_is_sent_comes_through_json(example):
    assert from_record(json.loads(json.dumps(to_record(example)))) == example


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "unknown kind None"),
        ({"kind": "Party"}, "unknown kind 'Party'"),
        ({"kind": "Start"}, r"fields \[\] instead of \['generation', 'zero_s'\]"),
        ({"kind": "Start", "zero_s": 1.0, "more": 2}, "fields"),
        ({"kind": "Start", "generation": 0, "zero_s": "soon"}, "zero_s is 'soon'"),
        ({"kind": "Start", "generation": 0, "zero_s": None}, "zero_s is None"),
        ({"kind": "Pulled", "shard": True, "version": 1, "samples": 8}, "shard is True"),
        ({"kind": "Ended", "samples": 0, "is_through": False, "checksums": 3}, "checksums is 3"),
        ({"kind": "Report", "now_s": 0.0, "totals": {}, "work": {}, "events": []}, "a UpdateTotals with the fields"),
        ({"kind": "Report", "now_s": 0.0, "totals": [], "work": {}, "events": []}, "a Report whose totals is"),
    ],
)
def test_what_is_none_of_them_is_refused(record, words):
    with pytest.raises(WireError, match=words):
        from_record(record)


REPORT: dict[str, Any] = to_record(next(example for example in EXAMPLES if isinstance(example, Report)))


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "Start", "generation": 0, "zero_s": math.nan},
        {"kind": "Start", "generation": 0, "zero_s": -math.inf},
        {"kind": "Start", "generation": 0, "zero_s": 10**30},
        {"kind": "ClockAnswer", "now_s": math.inf},
        {"kind": "Pulled", "shard": -1, "version": 1, "samples": 8},
        {"kind": "Pulled", "shard": 0, "version": 1.5, "samples": 8},
        {"kind": "Pulled", "shard": 0, "version": 2**63, "samples": 8},
        {"kind": "Checksums", "version": 1, "values": [1, "2"]},
        {"kind": "Checksums", "version": 1, "values": [1, True]},
        {"kind": "Checksums", "version": 1, "values": [2**64]},
        {"kind": "StatePart", "layer": 0, "key": "k", "shape": [2, -1], "number": None, "left": 0},
        {"kind": "StatePart", "layer": 0, "key": "k", "shape": [[2]], "number": None, "left": 0},
        {"kind": "StatePart", "layer": 0, "key": "k", "shape": [], "number": math.nan, "left": 0},
        {"kind": "StatePart", "layer": 0, "key": "k", "shape": [], "number": 1.0, "left": -1},
        {"kind": "Leaving", "signal": 15, "helpers": []},
        {"kind": "Leaving", "signal": "SIGTERM", "helpers": "server-0"},
        {"kind": "Regroup", "generation": -1},
        {"kind": "StateTensor", "dtype": "float32", "shape": [2, -3], "is_last": True},
        {"kind": "Hello", "fingerprint": {"model": 3}},
        {"kind": "Hello", "fingerprint": ["model"]},
        {"kind": "Goodbye", "events": [{}]},
        {"kind": "Together", "number": 1, "what": "loop", "loops": -1, "fingerprint": {}},
        {**REPORT, "now_s": math.nan},
        {**REPORT, "events": ["a", 3]},
        {**REPORT, "work": {**REPORT["work"], "spans": [[0.0, "1"]]}},
        {**REPORT, "work": {**REPORT["work"], "spans": [[0.0, math.inf]]}},
        {**REPORT, "work": {**REPORT["work"], "samples": -1}},
        {**REPORT, "work": {**REPORT["work"], "more": 1}},
        {**REPORT, "totals": {**REPORT["totals"], "t": math.nan}},
        {**REPORT, "totals": {**REPORT["totals"], "closed": 1}},
        {**REPORT, "totals": None},
    ],
    ids=lambda record: str(record)[:80],
)
def test_values_within_lists_and_numbers_that_are_none_are_refused(record):
    with pytest.raises(WireError, match=r"^a (\w+) (whose|with the fields) .{1,400}$"):
        from_record(json.loads(json.dumps(record)))


def test_an_error_is_short_whatever_was_sent():
    for record in (
        {"kind": "x" * 10**6},
        {"kind": "Start", "generation": 0, "zero_s": "x" * 10**6},
        {"kind": "Start", "x" * 10**6: 1},
    ):
        with pytest.raises(WireError, match=r"^.{1,400}$"):
            from_record(record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(JSON)
def test_no_value_in_a_field_breaks_the_reader(value):
    for example in EXAMPLES:
        for field in to_record(example):
            try:
                from_record({**to_record(example), field: value})
            except WireError:
                continue


@pytest.mark.parametrize("code", BY_CODE)
def test_an_error_travels_by_its_code(code):
    error = BY_CODE[code]("what happened")
    came = Failed.of("worker-1", error).error("worker-1")
    assert (type(came), str(came)) == (type(error), "what happened")
    assert came.blame == ("" if error.is_consequence else "worker-1")


def test_what_is_not_ours_says_where_it_happened():
    came = Failed.of("worker-1", ValueError("my own")).error("worker-1")
    assert isinstance(came, NodeFailed)
    assert str(came) == "worker-1: ValueError: my own"
    assert isinstance(Failed("unheard-of", "?").error("x"), NodeFailed)
    assert isinstance(Failed.of("x", DivergenceError("nan")).error("x"), DivergenceError)
