"""A summary of a plain run, for tests of what is said about runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ownpace.report.summary import Staleness, Summary, UpdateSamples

PLAIN = Summary(
    algorithm="sync",
    engine="virtual",
    task="digits",
    model="mlp",
    seed=0,
    reason="finished",
    seconds=2.0,
    samples=2000,
    updates=10,
    samples_per_s=1000.0,
    share_of_limit=0.5,
    limit_samples_per_s=2000.0,
    accuracy=0.9,
    best_accuracy=0.9,
    loss=0.1,
    target=None,
    time_to_target=None,
    staleness=Staleness(0.0, 0),
    update_samples=UpdateSamples(200.0, 240),
    busy={"worker-0": 1.0, "worker-1": 0.25},
)


def plain_but(**changes: object) -> Summary:
    """The plain run with some things otherwise."""
    make: Callable[..., Summary] = replace
    return make(PLAIN, **changes)
