"""The run in numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract import events
from ownpace.core.contract.errors import DivergenceError, InputError
from ownpace.core.contract.target import Goal
from ownpace.core.learning.task import Score
from ownpace.engines.ledger import EvaluationMarks, Ledger, UpdateTotals, diverged, sums_of

made_updates = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50), st.integers(0, 9)), max_size=20)


def add_all(totals: UpdateTotals, made: list[tuple[float, int, int]]) -> None:
    t, samples = totals.t, totals.samples
    for version, (seconds, count, staleness) in enumerate(made, totals.updates + 1):
        t, samples = t + seconds, samples + count
        totals.add(t, version, samples, staleness)


@given(made_updates)
def test_totals_are_those_of_the_updates(made: list[tuple[float, int, int]]) -> None:
    totals = UpdateTotals()
    add_all(totals, made)
    assert totals.updates == len(made)
    assert totals.samples == sum(count for _, count, _ in made)
    assert totals.t == pytest.approx(sum(seconds for seconds, _, _ in made))
    assert totals.staleness_sum == sum(staleness for _, _, staleness in made)
    assert totals.staleness_max == max((staleness for _, _, staleness in made), default=0)
    assert totals.largest == max((count for _, count, _ in made), default=0)


@given(made_updates, made_updates.filter(bool))
def test_what_was_in_flight_when_the_budget_was_spent_is_not_counted(
    made: list[tuple[float, int, int]], late: list[tuple[float, int, int]]
) -> None:
    totals, expected = UpdateTotals(), UpdateTotals()
    for each in (totals, expected):
        add_all(each, made)
        each.close(7.0)
    add_all(totals, late)
    totals.close(9.0)  # the first word counts
    assert totals == expected
    assert (totals.t, totals.closed) == (7.0, True)


@given(st.integers(1, 50), st.lists(st.integers(0, 60), max_size=30))
def test_every_mark_that_is_passed_asks_for_one_evaluation(every: int, counts: list[int]) -> None:
    marks, samples, last = EvaluationMarks(every), 0, 0
    for count in counts:
        samples += count
        # Several marks at once ask for one evaluation: there is one model to evaluate.
        assert marks.passed(samples) == (samples // every > last // every)
        assert not marks.passed(samples)
        last = samples
        assert marks.next == (samples // every + 1) * every


def ledger(accuracy: float | None = None, *, stop_at_target: bool = False) -> tuple[Ledger, list[events.Event]]:
    written: list[events.Event] = []
    return Ledger(written.append, Goal(accuracy), stop_at_target=stop_at_target), written


@pytest.mark.parametrize("stop_at_target", [False, True])
@pytest.mark.parametrize(("accuracy", "reached"), [(0.89, False), (0.9, True), (0.95, True)])
def test_a_run_may_stop_where_two_evaluations_in_a_row_meet_its_target_if_it_is_to(
    accuracy: float, reached: bool, stop_at_target: bool
) -> None:
    book, written = ledger(0.9, stop_at_target=stop_at_target)
    assert not book.evaluated(Score(0.25, 0.9), 1.0, 30, 4)
    assert not book.evaluated(Score(0.25, 0.8), 1.5, 40, 5)
    assert not book.evaluated(Score(0.25, 0.9), 2.0, 50, 6)
    assert book.evaluated(Score(0.25, accuracy), 2.5, 60, 7) is (reached and stop_at_target)
    assert written[-1] == events.Evaluation(2.5, 60, 7, 0.25, accuracy)


def test_a_task_without_accuracy_cannot_have_one_as_its_target() -> None:
    book, _ = ledger(0.9)
    with pytest.raises(InputError, match="the task has none; use target_loss"):
        book.evaluated(Score(0.25, None), 1.5, 40, 5)


def test_without_a_target_none_is_reached() -> None:
    book, _ = ledger()
    assert book.evaluated(Score(0.25, 1.0), 1.5, 40, 5) is False


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_divergence_is_recorded_before_it_ends_the_run(loss: float) -> None:
    book, written = ledger(0.9, stop_at_target=True)
    with pytest.raises(DivergenceError, match=f"the test loss is {loss} at sample 40"):
        book.evaluated(Score(loss, 0.1), 1.5, 40, 5)
    assert written == [events.Evaluation(1.5, 40, 5, None, 0.1)]
    assert events.from_line(events.to_line(written[0])) == written[0]  # which infinity and NaN would not survive


def test_the_error_says_what_to_do() -> None:
    assert str(diverged("a gradient", math.nan, 12)) == (
        "a gradient is nan at sample 12: training diverged; try a smaller lr"
    )


@given(made_updates, st.floats(0.1, 100), st.none() | st.booleans())
def test_the_last_record_has_the_sums(
    made: list[tuple[float, int, int]], seconds: float, replicas_identical: bool | None
) -> None:
    totals, workers = UpdateTotals(), {"worker-0": events.Tally(8, 0.2, 0.1)}
    add_all(totals, made)
    sums = sums_of(totals, seconds, 1000.0, workers, replicas_identical)
    book, written = ledger()
    book.end(seconds, None, sums)
    book.end(seconds, DivergenceError("the loss is nan"), sums)
    early = events.End(seconds, "the loss is nan", sums, "diverged")
    assert written == [events.End(seconds, "finished", sums), early]
    assert (sums.updates, sums.samples, sums.seconds) == (len(made), totals.samples, seconds)
    assert sums.staleness_mean * len(made) == pytest.approx(totals.staleness_sum)
    assert (sums.staleness_max, sums.limit_samples_per_s) == (totals.staleness_max, 1000.0)
    assert sums.largest_update == totals.largest
    assert (sums.workers, sums.replicas_identical) == (workers, replicas_identical)


def test_how_far_replicas_are_apart_is_relative_to_where_they_are() -> None:
    totals, mean = UpdateTotals(), torch.tensor([3.0, 4.0])
    assert sums_of(totals, 1.0, 1000.0, {}).spread_mean is None
    totals.add_spread(torch.tensor([3.0, 4.5]), mean)
    totals.add_spread(torch.tensor([3.3, 4.0]), mean)
    totals.add_spread(torch.tensor([math.nan, 4.0]), mean)  # it diverges: nothing to add up
    totals.close(1.0)
    totals.add_spread(torch.zeros(2), mean)
    sums = sums_of(totals, 1.0, 1000.0, {})
    assert sums.spread_mean == pytest.approx(0.08)
    assert sums.spread_max == pytest.approx(0.1)


def test_what_ended_a_run_early_is_recorded_with_its_code() -> None:
    book, written = ledger()
    sums = sums_of(UpdateTotals(), 1.0, 1000.0, {})
    error = diverged("the test loss", math.nan, 40)
    book.end(1.0, error, sums)
    assert written == [events.End(1.0, str(error), sums, "diverged")]
