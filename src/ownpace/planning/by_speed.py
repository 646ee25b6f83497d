"""A choice by speed alone, where nothing is known of how an algorithm learns.

Those that make `sync`'s updates come first: their result is that of one large machine, and learning rates stay right.
Others take their place only where they are faster by half, and the nearer one is to `sync`, the earlier it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from ownpace.planning.candidates import SAME_UPDATES
from ownpace.planning.timing import Timing

LARGE_GAIN = 1.5
"""What is not exact must be so many times as fast."""
BY_TRUST = (SAME_UPDATES, ("pace", "acco", "abs", "pipe", "od"), ("stride", "cocod", "local"))
"""Whoever is not named comes last."""


def best_by_speed(timings: Mapping[str, Timing]) -> str:
    """The one to take.

    >>> speed = lambda rate: Timing(rate, 1.0, 1.0, 1.0, None, 10)
    >>> best_by_speed({"sync": speed(100), "balanced": speed(200), "pace": speed(290), "diloco": speed(295)})
    'balanced'
    """
    rest = tuple(name for name in timings if not any(name in group for group in BY_TRUST))
    best = None
    for group in (*BY_TRUST, rest):
        known = [name for name in group if name in timings]
        fastest = max(known, key=lambda name: timings[name].samples_per_s, default=None)
        if fastest is None:
            continue
        if best is None or timings[fastest].samples_per_s > LARGE_GAIN * timings[best].samples_per_s:
            best = fastest
    assert best is not None, "somebody takes part"
    return best
