"""Runs in the formats of other tools."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.events import Compute, Evaluation, Event, Load, Run, Transfer, Update
from ownpace.report.exports.csv_file import write_csv
from ownpace.report.exports.scalars import MOST_UPDATES, Scalar, Scalars
from ownpace.report.exports.trace import write_trace
from ownpace.testing import simulate


@pytest.mark.parametrize("algorithm", ["sync", "async", "pace"])
def test_a_trace_has_every_computation_and_no_overlap_on_a_track(tmp_path, algorithm):
    _, events = simulate(make_algorithm(algorithm), samples=400)
    count = write_trace({"a": events, "b": events}, tmp_path / "t.json.gz")
    with gzip.open(tmp_path / "t.json.gz", "rt", encoding="utf-8") as file:
        records = json.load(file)["traceEvents"]
    assert len(records) == count
    spans = defaultdict(list)
    for each in records:
        if each["ph"] == "X":
            spans[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for track in spans.values():
        track.sort()
        assert all(later[0] >= earlier[1] - 0.01 for earlier, later in pairwise(track))
    computed = [each for each in records if each["name"] == "compute" and each["pid"] == 1]
    assert len(computed) == sum(isinstance(event, Compute) for event in events)
    names = {
        each["tid"]: each["args"]["name"] for each in records if each["name"] == "thread_name" and each["pid"] == 1
    }
    assert {names[each["tid"]] for each in computed} == {event.who for event in events if isinstance(event, Compute)}


def test_what_overlaps_gets_a_lane_of_its_own(tmp_path):
    events: list[Event] = [
        Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.8, {"workers": ["worker-0"]}),
        Transfer(0.0, 2.0, "push", ["worker-0", "server-0"], 40),
        Transfer(1.0, 3.0, "push", ["worker-0", "server-0"], 40),
        Transfer(2.5, 4.0, "push", ["worker-0", "server-0"], 40),
        Load(0.0, 1.0, "worker-0", 8),
    ]
    write_trace({"a": events}, tmp_path / "t.json")
    records = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [each["args"]["name"] for each in records if each["name"] == "thread_name"]
    pushed = "transfer: worker-0 → server-0"
    assert names == ["worker-0", pushed, f"{pushed} (2)", "worker-0 loads"]


def test_evaluations_become_lines_of_csv(tmp_path):
    run = Run("sync", "virtual", "digits", "mlp", 3, 8, 8, 10, 40, 100, 0.8, {"workers": ["worker-0"]})
    events: list[Event] = [run, Evaluation(0.5, 8, 1, None, None), Evaluation(1.5, 16, 2, 0.25, 0.5)]
    assert write_csv({'a,"b"': events}, tmp_path / "c.csv") == 2
    with (tmp_path / "c.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["run"], first["loss"], first["accuracy"]) == ('a,"b"', "", "")
    assert (second["seed"], second["seconds"], second["loss"], second["accuracy"]) == ("3", "1.5", "0.25", "0.5")


def test_of_many_updates_few_become_scalars_and_all_evaluations_do():
    scalars = Scalars()
    found: list[Scalar] = []
    for at in range(1, 100_001):
        found += scalars.of(Update(float(at), "worker-0", at, 8, 8 * at, 1))
    staleness = [each for each in found if each.name == "update/staleness"]
    assert MOST_UPDATES < len(staleness) < 16 * MOST_UPDATES
    assert staleness[-1].samples > 8 * 99_900
    (accuracy, speed) = scalars.of(Evaluation(2.0, 16, 2, None, 0.5))
    assert (accuracy.name, accuracy.value, accuracy.samples) == ("test/accuracy", 0.5, 16)
    assert (speed.name, speed.value) == ("speed/samples_per_s", 8.0)
