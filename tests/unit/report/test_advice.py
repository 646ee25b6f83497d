"""What a friend would say of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.summaries import plain_but

from ownpace.report.advice import advice
from ownpace.report.summary import Staleness, UpdateSamples

USUAL = plain_but(
    algorithm="pace",
    engine="process",
    seconds=10.0,
    samples=10_000,
    updates=150,
    share_of_limit=1.0,
    limit_samples_per_s=1000.0,
    best_accuracy=0.92,
    target=0.9,
    time_to_target=5.0,
    staleness=Staleness(1.0, 1),
    update_samples=UpdateSamples(66.0, 128),
    busy={"worker-0": 1.0, "worker-1": 1.0},
    budget=10_000,
    worker_samples={"worker-0": 8000, "worker-1": 2000},
)
MISSED = replace(USUAL, time_to_target=None)
SLOW = replace(USUAL, limit_samples_per_s=8000.0, share_of_limit=0.125)
LARGE = replace(USUAL, update_samples=UpdateSamples(900.0, 2000))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (USUAL, []),
        (replace(USUAL, busy={"worker-0": 0.5, "worker-1": 0.5}, limit_samples_per_s=2000.0), []),  # it waits: no fault
        (SLOW, ["workers kept 12% of the paces that the fleet prescribes"]),
        (
            LARGE,
            ["updates had 900 samples on average, where 64 were asked for, at the same learning rate"],
        ),
        (replace(LARGE, updates=11), ["only 11 updates: updates had 900 samples on average, where 64 were asked for"]),
        (replace(USUAL, samples=20_000), ["beyond the budget: 20,000 samples instead of 10,000"]),
        (replace(USUAL, samples=10_500), []),
        (replace(USUAL, budget=None, samples=20_000), []),
        (replace(MISSED, best_accuracy=0.7), ["never near the target of 90.0%"]),
        (replace(MISSED, best_accuracy=0.895), ["close to the target of 90.0%, but not there; train a little longer"]),
        (MISSED, ["one evaluation met the target of 90.0%, but no two in a row"]),
        (replace(MISSED, target=None), []),
        (
            replace(MISSED, target=None, target_loss=0.01, accuracy=None, best_accuracy=None),
            ["never near the target of 0.01"],
        ),
        (
            replace(USUAL, worker_samples={"worker-0": 9900, "worker-1": 100}),
            ["worker-1 did 1.0% of the computing"],
        ),
        (
            replace(USUAL, worker_samples={"worker-0": 9950, "worker-1": 30, "worker-2": 20}),
            ["2 workers (worker-1 …) did 0.5% of the computing"],
        ),
        (replace(MISSED, updates=0, samples=0), ["no update was made, so nothing was learnt"]),
        (replace(SLOW, reason="it diverged", code="diverged"), []),
    ],
)
def test_a_friend_says(run, said):
    lines = advice(run, asked=64)
    assert len(lines) == len(said), lines
    assert all(part in line for part, line in zip(said, lines, strict=True)), lines


def test_rounds_of_local_steps_are_as_long_as_they_are():
    assert advice(LARGE, asked=None) == []
