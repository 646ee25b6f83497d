"""A run in a few numbers, out of its events."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import End, Evaluation, Event, Run, Sums, Tally
from ownpace.report import summarize


def a_run(*scores: tuple[float, float | None], target: float | None = None, seconds: float = 2.0) -> list[Event]:
    """A run of two workers with evaluations at these times."""
    workers = {"worker-0": Tally(60, 2.0, 0.0), "worker-1": Tally(40, 0.5, 1.5)}
    return [
        Run("sync", "virtual", "digits", "mlp", 3, 8, 8, 10, 40, 100, target, {"workers": list(workers)}),
        *(Evaluation(t, 10, 1, 1.0 - t / 10, accuracy) for t, accuracy in scores),
        End(seconds, "finished", Sums(seconds, 100, 10, 0.5, 3, 200.0, workers, None, 16)),
    ]


def test_rates_and_shares_are_those_of_the_sums():
    summary = summarize(a_run((1.0, 0.5)))
    assert (summary.algorithm, summary.engine, summary.seed, summary.reason) == ("sync", "virtual", 3, "finished")
    assert (summary.samples, summary.updates, summary.seconds) == (100, 10, 2.0)
    assert (summary.samples_per_s, summary.share_of_limit) == (50.0, 0.25)
    assert (summary.staleness.mean, summary.staleness.max) == (0.5, 3)
    assert (summary.update_samples.mean, summary.update_samples.max) == (10.0, 16)
    assert summary.spread is None
    assert summary.busy == {"worker-0": 1.0, "worker-1": 0.25}


def test_the_last_accuracy_and_the_best_are_kept_apart():
    summary = summarize(a_run((0.5, 0.6), (1.0, 0.9), (2.0, 0.8)))
    assert (summary.accuracy, summary.best_accuracy, summary.loss) == (0.8, 0.9, 0.8)


@pytest.mark.parametrize(("target", "time"), [(0.55, 0.5), (0.7, 1.5), (0.8, 1.5), (0.9, None), (None, None)])
def test_the_time_to_the_target_is_that_of_the_first_of_two_evaluations_in_a_row(target, time):
    scores = ((0.5, 0.6), (1.0, 0.65), (1.5, 0.9), (2.0, 0.8), (2.5, 0.6), (3.0, 0.95))
    assert summarize(a_run(*scores, target=target)).time_to_target == time


def test_a_loss_can_be_the_target():
    run, *events = a_run((1.0, None), (2.0, None), (3.0, None))  # losses 0.9, 0.8, 0.7
    assert isinstance(run, Run)
    summary = summarize([replace(run, target_loss=0.8), *events])
    assert (summary.target_loss, summary.time_to_target) == (0.8, 2.0)


def test_a_task_without_accuracy_has_none():
    summary = summarize(a_run((1.0, None), target=0.5))
    assert (summary.accuracy, summary.best_accuracy, summary.time_to_target) == (None, None, None)


def test_a_run_that_ended_before_it_began_divides_by_nothing():
    summary = summarize(a_run(seconds=0.0))
    assert (summary.samples_per_s, summary.share_of_limit) == (0.0, 0.0)


def test_events_that_were_cut_off_are_refused():
    events = a_run()
    with pytest.raises(InputError, match="lack their last record"):
        summarize(events[:-1])
    with pytest.raises(InputError, match="lack their first record"):
        summarize(events[1:])


def test_a_summary_is_ready_for_json():
    summary = summarize(a_run((1.0, 0.5)))
    assert json.loads(json.dumps(summary.as_dict()))["staleness"] == {"mean": 0.5, "max": 3}
