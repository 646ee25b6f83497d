"""A run's events, digested: bounded, and true where they are kept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import EVENTS, read_columns, read_events
from ownpace.core.contract.events import (
    Compute,
    Evaluation,
    Event,
    Fault,
    Omitted,
    Run,
    Transfer,
    Update,
    Wait,
    to_line,
)
from ownpace.report.digest import digest
from ownpace.report.digest.classes import chosen, classes_of
from ownpace.report.digest.histogram import Histogram
from ownpace.report.digest.run_digest import CUT_OFF
from ownpace.report.digest.thinned import Thinned
from ownpace.report.digest.timeline import MOST_SPANS, Overview, Timeline
from ownpace.report.page import PageRun
from ownpace.report.page.document import page
from ownpace.testing import simulate


def first(*workers: str) -> Run:
    return Run("sync", "virtual", "digits", "mlp", 0, 8, 8, 10, 40, 100, 0.8, {"workers": list(workers)})


def test_a_thinned_curve_is_bounded_and_keeps_its_extremes():
    curve = Thinned(50)
    values = [random.Random(7).random() for _ in range(10_000)]
    values[4711], values[815] = -3.0, 5.0
    for at, value in enumerate(values):
        curve.add((at, 2 * at, value))
    assert len(curve.points) <= 100
    assert (4711, 2 * 4711, -3.0) in curve.points
    assert (815, 2 * 815, 5.0) in curve.points
    assert (curve.points[0][0], curve.points[-1][0]) == (0, 9_999)
    assert curve.points == sorted(curve.points)


def test_a_histogram_loses_no_value_however_many_there_are():
    counted = Histogram(4)
    for value in (*range(3000), 10**9, 10**9):
        counted.add(value)
    bins = counted.bins()
    assert len(bins) <= 4
    assert sum(each.count for each in bins) == counted.total == 3002
    assert bins[0].low == 0
    assert bins[-1].low <= 10**9 <= bins[-1].high
    assert bins[-1].count == 2


def test_an_overview_adds_up_however_far_the_run_goes():
    overview = Overview(8)
    spans = [(0.5e-6, 2e-6), (0.3, 0.4), (1.0, 7.5), (90.0, 91.0)]
    for t, until in spans:
        overview.add(0, "compute", [(t, until)])
    assert sum(overview.seconds[0, "compute"]) == pytest.approx(sum(until - t for t, until in spans))
    assert len(overview.seconds[0, "compute"]) == 8
    assert overview.seconds[0, "compute"][int(90.5 / overview.width)] >= 1.0 - 1e-9


def test_a_timeline_keeps_all_of_the_beginning_and_of_the_end():
    lines = Timeline(["worker-0"])
    total = 3 * MOST_SPANS
    for at in range(total):
        lines.add({(0, "compute"): [(at, at + 0.5)]})
        lines.add_updates([at + 0.5])
    beginning, end = lines.stretches(total)
    for stretch in (beginning, end):
        known = {at for at in range(total) if at >= stretch.start and at + 0.5 <= stretch.end}
        assert known <= {int(span[2]) for span in stretch.spans}
        assert len(known) > 1000
    assert (beginning.start, end.end) == (0.0, total)
    assert beginning.end < end.start


def test_a_short_timeline_is_kept_whole():
    lines = Timeline(["worker-0"])
    for at in range(MOST_SPANS + 10):
        lines.add({(0, "compute"): [(at, at + 0.5)]})
    (stretch,) = lines.stretches(MOST_SPANS + 10)
    assert len(stretch.spans) == MOST_SPANS + 10


def test_of_many_workers_every_class_has_some():
    workers = [f"new-{at}" for at in range(500)] + [f"old-{at}" for at in range(3)]
    shown = chosen(classes_of(workers, {}))
    assert len(shown) == 12
    assert {"new-0", "new-8", "old-0", "old-2"} <= set(shown)
    assert chosen({str(at): [f"w-{at}"] for at in range(24)}) == [f"w-{at}" for at in range(0, 24, 2)]


def test_seconds_are_those_of_each_worker_and_what_its_group_did():
    events: list[Event] = [
        first("worker-0", "worker-1"),
        Compute(0.0, 1.0, "worker-0", 8, 0),
        Compute(0.0, 2.0, "worker-1", 8, 0),
        Wait(1.0, 3.0, "worker-0", "all-reduce"),
        Transfer(2.0, 3.0, "all-reduce", "workers", 40),
        Transfer(2.5, 3.5, "all-reduce", "workers", 40),  # overlaps: half of it is new
        Transfer(4.0, 5.0, "push", ["worker-1", "server-0"], 40),
    ]
    (spent,) = digest(events).spent_by_class().values()
    assert spent["worker-0"] == {"compute": 1.0, "wait": 2.0, "transfer": 1.5}
    assert spent["worker-1"] == {"compute": 2.0, "transfer": 2.5}


def test_a_run_that_was_cut_off_is_summed_up_as_far_as_it_goes():
    events: list[Event] = [
        first("worker-0", "worker-1"),
        Compute(0.0, 1.0, "worker-0", 8, 0),
        Compute(0.0, 2.0, "worker-1", 8, 0),
        Update(2.0, "worker-0", 1, 16, 16, 0),
        Evaluation(2.0, 16, 1, 1.5, 0.9),
        Update(4.0, "worker-0", 2, 24, 40, 2),
        Evaluation(4.0, 40, 2, 1.0, 0.9),
        Fault(4.5, "worker-1", "kill"),
    ]
    found = digest(events)
    summary = found.summary()
    assert (summary.code, summary.samples, summary.updates, summary.seconds) == (CUT_OFF, 40, 2, 4.5)
    assert (summary.accuracy, summary.time_to_target) == (0.9, 2.0)
    assert (summary.staleness.mean, summary.staleness.max, summary.update_samples.max) == (1.0, 2, 24)
    assert summary.limit_samples_per_s == 12.0
    assert [mark.kind for mark in found.marks] == ["fault"]


def test_a_run_without_detail_that_was_cut_off_has_no_limit_to_compare_with():
    summary = digest([first("worker-0"), Evaluation(2.0, 16, 1, 1.5, 0.9)]).summary()
    assert (summary.samples_per_s, summary.share_of_limit) == (8.0, 0.0)


def test_no_value_of_a_damaged_record_is_too_much():
    events: list[Event] = [
        replace(first("worker-0"), algorithm="\ud800"),
        Compute(0.0, 1e300, "worker-0", 8, 0),
        Compute(-1e300, -1.0, "worker-0", -8, 0),
        Update(1.7e308, "worker-0", 1, -16, -16, -3),
        Evaluation(-5.0, -1, -1, 1e300, -7.0),
    ]
    text = page([PageRun("damaged", digest(events), {}, "")], "today")
    assert "damaged" in text.encode().decode()


def test_time_that_was_not_recorded_does_not_count():
    events: list[Event] = [
        first("worker-0"),
        Compute(0.0, 1.0, "worker-0", 8, 0),
        Wait(1.0, 2.0, "worker-0", "message"),
        Omitted(2.0, 8.0, {}, {}, 0, 0),
        Compute(8.0, 9.0, "worker-0", 8, 0),
        Wait(9.0, 10.0, "worker-0", "message"),
    ]
    found = digest(events)
    assert (found.recorded_s, found.seconds) == (4.0, 10.0)


@pytest.mark.parametrize("algorithm", ["sync", "async", "layered"])
def test_columns_of_records_come_to_the_same_as_the_records(algorithm, tmp_path):
    _, events = simulate(make_algorithm(algorithm), samples=12_000)
    path = tmp_path / EVENTS
    path.write_text("".join(to_line(event) + "\n" for event in events), encoding="utf-8")
    one, other = (page([PageRun("a", digest(each(path)), {}, "")], "now") for each in (read_events, read_columns))
    assert len(events) > 3000
    assert one == other


def test_events_without_a_beginning_are_refused():
    for events in ([], [Update(2.0, "worker-0", 1, 16, 16, 0)]):
        with pytest.raises(InputError, match="lack their first record"):
            digest(events)
