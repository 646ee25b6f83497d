"""A choice by speed alone, where nothing is known of how an algorithm learns.

Those that make `sync`'s updates come first: their result is that of one large machine, and learning rates stay right.
Others take their place only where they are faster by half, and the less a deep net loses with one, the earlier it is
asked: next to none with `stride`, a point and more with those whose gradients are an update old. Where sums are slow,
some of those make updates of many more samples than `sync` does, and come last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ownpace.planning.candidates import SAME_UPDATES
from ownpace.planning.timing import Timing

LARGE_GAIN = 1.5
"""What is not exact must be this many times as fast."""
LARGE_UPDATES = 2.5
"""Updates that have this many times the samples of those of `sync`, or more, are too few to trust."""
LATE = ("pace", "acco", "abs", "pipe", "od")
"""Their gradients are an update old."""
BY_TRUST = (SAME_UPDATES, ("stride",), LATE, ("cocod", "local"))
"""Whoever is not named comes last."""


def best_by_speed(timings: Mapping[str, Timing]) -> str:
    """The one to take.

    >>> speed = lambda rate, samples=64: Timing(rate, 1.0, samples, 1.0, None, 10)
    >>> best_by_speed({"sync": speed(100), "balanced": speed(200), "pace": speed(290), "diloco": speed(295)})
    'balanced'
    >>> best_by_speed({"sync": speed(100), "pace": speed(200), "acco": speed(250, samples=500)})
    'pace'
    >>> best_by_speed({"sync": speed(100), "pace": speed(200), "stride": speed(190, samples=500)})
    'stride'
    """
    best, usual = None, next((timings[name].samples_per_update for name in SAME_UPDATES if name in timings), math.inf)
    large = [name for name in LATE if name in timings and timings[name].samples_per_update > LARGE_UPDATES * usual]
    groups = [[name for name in group if name not in large] for group in BY_TRUST]
    for group in (*groups, [name for name in timings if not any(name in group for group in groups)]):
        known = [name for name in group if name in timings]
        fastest = max(known, key=lambda name: timings[name].samples_per_s, default=None)
        if fastest is None:
            continue
        if best is None or timings[fastest].samples_per_s > LARGE_GAIN * timings[best].samples_per_s:
            best = fastest
    assert best is not None, "somebody takes part"
    return best
