"""A choice by speed alone, where nothing is known of how an algorithm learns.

Those that make `sync`'s updates come first: their result is that of one large machine, and learning rates stay right.
Others take their place only where they are faster by half, and the nearer one is to `sync`, the earlier it is asked.
Where sums are slow, some make updates of many more samples than `sync` does: those are not near it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ownpace.planning.candidates import SAME_UPDATES
from ownpace.planning.timing import Timing

LARGE_GAIN = 1.5
"""What is not exact must be so many times as fast."""
LARGE_UPDATES = 2.5
"""Updates of so many times as many samples as those of `sync`, or more, are too few to trust."""
BY_TRUST = (SAME_UPDATES, ("pace", "acco", "abs", "pipe", "od"), ("stride", "cocod", "local"))
"""Whoever is not named comes last."""


def best_by_speed(timings: Mapping[str, Timing]) -> str:
    """The one to take.

    >>> speed = lambda rate, samples=64: Timing(rate, 1.0, samples, 1.0, None, 10)
    >>> best_by_speed({"sync": speed(100), "balanced": speed(200), "pace": speed(290), "diloco": speed(295)})
    'balanced'
    >>> best_by_speed({"sync": speed(100), "pace": speed(200), "acco": speed(250, samples=500)})
    'pace'
    """
    best, usual = None, next((timings[name].samples_per_update for name in SAME_UPDATES if name in timings), math.inf)
    large = [
        name for name in BY_TRUST[1] if name in timings and timings[name].samples_per_update > LARGE_UPDATES * usual
    ]
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
