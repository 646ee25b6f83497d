"""What came out, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.summaries import plain_but

from ownpace.report.page.verdict import verdict
from ownpace.report.summary import Summary

PLAIN = plain_but(updates=100)
RACE = replace(PLAIN, target=0.9, time_to_target=2.0)
FAST = replace(RACE, algorithm="pace", time_to_target=1.0)


def said(*runs: tuple[str, Summary] | tuple[str, Summary, Mapping[str, object]]) -> str:
    headline, more = verdict([(run[0], run[1], run[2] if len(run) > 2 else {}) for run in runs])
    return " | ".join((headline, *more)).replace("\N{NO-BREAK SPACE}", " ")


def test_one_run_says_how_far_it_came_and_who_was_idle():
    alone = said(("first", PLAIN))
    assert alone.startswith("first came to 90.0 % in 2.00 s")
    assert "50 % of what its machines would do alone" in alone
    assert "worker-1, computed 25 %" in alone
    assert said(("first", RACE)).startswith("first reached 90.0 % after 2.00 s")
    assert said(("first", replace(RACE, time_to_target=None))).startswith(
        "first did not reach 90.0 %: it came to 90.0 %"
    )
    assert said(("first", replace(PLAIN, accuracy=None))).startswith("first came to a loss of 0.1")
    assert said(("first", replace(PLAIN, accuracy=None, loss=None))).startswith("first made 100 updates")


def test_a_loss_may_be_the_target():
    race = replace(RACE, target=None, target_loss=0.5)
    assert said(("first", race)).startswith("first reached a loss of 0.5 after 2.00 s")
    missed = replace(race, time_to_target=None, loss=0.7)
    assert said(("first", missed)).startswith("first did not reach a loss of 0.5: it came to a loss of 0.7")
    assert said(("a", race), ("b", missed)).startswith("a is first to a loss of 0.5")


def test_the_first_to_the_target_is_named_and_by_how_much():
    race = said(("sync", RACE), ("pace", FAST), ("abs", replace(RACE, algorithm="abs", time_to_target=None)))
    assert race.startswith("pace is first to 90.0 %: after 1.00 s | sync took 2 times as long (2.00 s).")
    assert "abs did not reach it." in race


def test_seeds_are_one_contender_and_one_that_missed_is_not_hidden():
    seeds = [
        ("pace-0", FAST, {"seed": 0, "lr": 0.1}),
        ("pace-1", replace(FAST, time_to_target=1.5), {"seed": 1, "lr": 0.1}),
    ]
    race = said(("sync", RACE, {"seed": 0}), *seeds)
    assert race.startswith("pace is first to 90.0 %: after 1.25 s (± 0.35 s over 2 seeds)")
    missed = said(
        ("sync", RACE, {"seed": 0}), seeds[0], ("pace-1", replace(FAST, time_to_target=None), {"seed": 1, "lr": 0.1})
    )
    assert missed.startswith("sync is first")
    assert "pace did not reach it" in missed
    # Another learning rate is another contender.
    other = said(("pace-0", FAST, {"lr": 0.1}), ("pace-1", replace(FAST, time_to_target=1.5), {"lr": 0.2}))
    assert other.startswith("pace-0 is first")


def test_without_a_target_scores_decide_and_unlike_tasks_are_not_compared():
    assert said(("a", PLAIN), ("b", replace(PLAIN, accuracy=0.95))).startswith("b came furthest: 95.0 %")
    losses = [replace(PLAIN, accuracy=None, loss=loss) for loss in (0.3, 0.2)]
    assert said(("a", losses[0]), ("b", losses[1])).startswith("b came furthest: a loss of 0.2")
    assert "2 runs with different tasks or targets" in said(("a", PLAIN), ("b", replace(PLAIN, task="mnist")))
    none = replace(RACE, time_to_target=None)
    assert said(("a", none), ("b", replace(none, accuracy=0.5))).startswith("None reached 90.0 %; a came furthest")


def test_a_prediction_does_not_win_over_what_was_measured():
    measured = replace(RACE, engine="process", samples_per_s=900.0)
    both = said(
        ("sync", measured),
        ("sync-virtual", replace(RACE, time_to_target=0.1)),
        ("pace", replace(FAST, engine="process")),
    )
    assert both.startswith("pace is first")
    assert "predicted within 11 %" in both


def test_what_ended_early_and_what_made_few_updates_is_said():
    assert "a: ended early, the power went out" in said(("a", replace(PLAIN, reason="the power went out")))
    assert "a: 8 updates are too few to say much" in said(("a", replace(PLAIN, updates=8)))
    far = replace(RACE, time_to_target=None, best_accuracy=0.5)
    assert "a: never near the target of 90.0%" in said(("a", far))
    many = said(*((f"run-{at}", replace(PLAIN, updates=8 + at)) for at in range(12)))
    assert many.endswith("And 4 more remarks of this kind.")
