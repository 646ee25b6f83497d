"""Summaries as a table for people."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.summaries import PLAIN

from ownpace.report.summary import Staleness, Summary
from ownpace.report.table import comparison_table


def rendered(*summaries: Summary, width: int = 200) -> list[list[str]]:
    """The cells of the table, row by row; the first is the heading."""
    columns = comparison_table(summaries, width).columns
    heading = [str(column.header).replace("\n", " ") for column in columns]
    return [heading, *(list(map(str, row)) for row in zip(*(column.cells for column in columns), strict=True))]


def test_one_row_says_what_people_ask_first():
    heading, row = rendered(PLAIN)
    assert heading[:5] == ["algorithm", "samples/s", "of limit", "updates", "samples/ update"]
    assert heading[5:] == ["busy (%)", "stale- ness", "loss", "accuracy"]
    assert row == ["sync", "1,000", "50%", "10", "200", "100 25", "0.0, ≤ 0", "0.1", "90.0%"]


def test_seeds_are_averaged_and_said_so():
    other = replace(PLAIN, seed=1, samples_per_s=3000.0, accuracy=0.8, staleness=Staleness(1.0, 4), busy={
        "worker-0": 0.5, "worker-1": 0.75,
    })  # fmt: skip
    assert comparison_table([PLAIN, other]).title == "mean ± standard deviation of 2 seeds"
    _, row = rendered(PLAIN, other)
    assert row == ["sync", "2,000", "50%", "10", "200", "75 50", "0.5, ≤ 4", "0.1 ± 0", "85.0 ± 7.1%"]


def test_rows_stand_in_the_order_given():
    rows = rendered(*(replace(PLAIN, algorithm=name) for name in ("pace", "abs", "sync")))
    assert [row[0] for row in rows[1:]] == ["pace", "abs", "sync"]


def test_times_to_the_target_stand_there_where_there_is_one():
    reached = replace(PLAIN, target=0.9, time_to_target=1.234)
    heading, first, second = rendered(reached, replace(reached, algorithm="abs", time_to_target=None))
    assert heading[1] == "time to 90.0%"
    assert (first[1], second[1]) == ("1.23 s", "not reached")


def test_one_seed_that_missed_the_target_is_not_averaged_away():
    reached = replace(PLAIN, target=0.9, time_to_target=1.0)
    rows = rendered(reached, replace(reached, seed=1, time_to_target=None))
    assert rows[-1][1] == "1 of 2 seeds"
    assert rendered(*2 * [replace(reached, time_to_target=None)])[-1][1] == "not reached"
    assert rendered(reached, replace(reached, seed=1, time_to_target=2.0))[-1][1] == "1.50 ± 0.71 s"


def test_the_fastest_is_shown_in_bold():
    slow = replace(PLAIN, target=0.9, time_to_target=2.0)
    table = comparison_table([slow, replace(slow, algorithm="pace", time_to_target=1.0)])
    assert [cell.style for cell in table.columns[1].cells] == ["", "bold green"]


def test_what_was_simulated_next_to_processes_is_a_prediction():
    rows = rendered(replace(PLAIN, engine="process"), PLAIN)
    assert [row[0] for row in rows[1:]] == ["sync", "predicted"]
    assert rendered(PLAIN)[1][0] == "sync"


def test_many_workers_are_summed_up():
    busy = {f"worker-{rank}": rank / 10 for rank in range(1, 10)}
    assert rendered(replace(PLAIN, busy=busy))[1][5] == "10% to 90%"


def test_tasks_without_accuracy_show_their_loss():
    heading, row = rendered(replace(PLAIN, accuracy=None), width=60)
    assert (heading[-1], row[-1]) == ("loss", "0.1")
    heading, row = rendered(replace(PLAIN, accuracy=None, loss=None))  # time alone was simulated
    assert not {"loss", "accuracy"} & set(heading)


def test_a_loss_that_is_the_target_is_shown_before_the_accuracy():
    heading, _ = rendered(replace(PLAIN, target_loss=0.25, time_to_target=1.0), width=60)
    assert heading[1] == "time to loss 0.25"
    assert "loss" in heading


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_it_fits_what_matters_stays_and_no_name_is_cut(width):
    name = "staleness-aware-and-much-longer"
    runs = [replace(PLAIN, target=0.9, time_to_target=123.4, code="machine-died", reason="x", seed=s) for s in (0, 1)]
    table = comparison_table([*runs, *(replace(run, algorithm=name) for run in runs)], width)
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert name in text.replace("\n", "") or width < len(name)
    heads = [str(column.header) for column in table.columns]
    assert heads[0] == "algorithm"
    if width >= 80:
        assert "123.40 ± 0.00 s" in text
    assert ("busy (%)" in heads) == (width == 200)
    left_out = "" if table.caption is None else str(table.caption)
    assert ("busy (%)" in left_out) == (width < 200)


def test_a_run_that_ended_early_says_so():
    heading, first, second = rendered(PLAIN, replace(PLAIN, algorithm="abs", reason="the power went out"))
    assert heading[-1] == "ended"
    assert (first[-1], second[-1]) == ("finished", "early")
