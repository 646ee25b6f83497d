"""How thorough a plan is, by what a sample costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ownpace.planning.budget import EFFORTS, LEAST_UPDATES, Affordable, Budget, affordable, budget_for
from ownpace.planning.cost import Cost, CostWatch
from ownpace.planning.timing import Timing
from ownpace.planning.trial import Trial, try_out
from ownpace.run import Config
from ownpace.tasks import Digits
from ownpace.testing.blobs import Blobs

TIMING = Timing(1000.0, 10.0, 100.0, 1.0, None, 20)
FULL, SOME, LEAST = EFFORTS


def budget(train_s: float, test_s: float = 1e-6, seconds: float = 100.0, config: Config | None = None) -> Budget:
    spendable = [Affordable(seconds, Cost(train_s, test_s))]
    return budget_for(config or Config(), Digits(), spendable, TIMING, 8, 120.0, seconds)


@pytest.mark.parametrize(
    ("train_s", "effort", "samples"),
    [(1e-5, FULL, 30000), (1e-3, SOME, 4000), (5e-3, LEAST, 2000), (1.0, LEAST, None)],
)
def test_what_a_sample_costs_says_how_much_is_tried(train_s, effort, samples):
    found = budget(train_s)
    assert found.effort is effort
    assert found.samples == samples
    if samples is None:
        return
    runs = effort.runs_each * min(8, effort.most_searches)
    assert found.samples * train_s * runs <= 100.0 * effort.used
    assert found.samples >= effort.least_updates * TIMING.samples_per_update


def test_evaluations_cost_no_more_than_the_training_in_between():
    cheap, dear = budget(1e-4, 1e-6), budget(1e-4, 1e-3)
    assert (cheap.num_test, dear.num_test) == (360, 250)
    assert dear.num_evaluations < cheap.num_evaluations


def test_trials_are_tested_as_often_as_the_run_that_is_planned():
    assert budget(1e-5).eval_every == 30000 // 80
    assert budget(1e-5, config=Config(eval_every=600)).eval_every == 600
    # No run is to be judged by next to no evaluations, nor is all time to be spent on them.
    assert budget(1e-5, config=Config(eval_every=10**6)).eval_every == 30000 // 20
    assert budget(1e-5, config=Config(eval_every=1)).eval_every == 30000 // 80


def test_where_nothing_can_be_learnt_it_says_what_would_help():
    found = budget(1.0)
    seconds = int(found.why.partition("--seconds ")[2].partition(" ")[0])
    assert seconds > 120
    assert budget_for(
        Config(), Digits(), [Affordable(seconds * 0.6, Cost(1.0, 1e-6))], TIMING, 8, seconds, 0.6 * seconds
    ).samples
    few = budget(1e-5, config=Config(samples=LEAST_UPDATES * 100 - 1))
    assert (few.samples, "too few to learn from" in few.why) == (None, True)


def test_of_the_clock_and_the_processors_time_the_scarcer_counts():
    trial = Trial(Config(task=Blobs(), engine="virtual", fleet="2,1", samples=2000, eval_every=100))
    tried = try_out(trial)
    (by_clock, by_work) = affordable([tried, tried], 10.0, 60.0, 2)
    assert (by_clock.total_s, by_clock.cost) == (20.0, tried.time)
    assert (by_work.total_s, by_work.cost) == (120.0, tried.work)
    assert len(affordable([tried], 10.0, None, 2)) == 1
    assert affordable([], 10.0, 60.0, 2) == []


def test_what_comes_before_the_first_update_does_not_count():
    clock = SimpleNamespace(now=0.0)
    watch = CostWatch(Blobs(), lambda: clock.now)
    assert watch.cost() is None
    for samples, now in ((0, 50.0), (10, 100.0), (20, 101.0), (30, 102.0)):
        clock.now = now
        watch.mark(samples)
    assert watch.cost().train_s == pytest.approx(0.1)
