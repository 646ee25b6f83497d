"""A choice by speed alone, where nothing is known of how an algorithm learns.

Those that make `sync`'s updates come first: their result is that of one large machine, and learning rates stay right.
Others take their place only where they are faster by half, and the less a deep net loses with one, the earlier it is
asked: next to none with `stride`, a point and more with those whose gradients are an update old. Where sums are slow,
some of those make updates of many more samples than `sync` does: they come last, and speed alone does not choose them.
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
    >>> best_by_speed({"sync": speed(100), "stride": speed(110), "acco": speed(900, samples=500)})
    'sync'
    """
    best = None
    large = _large(timings)
    for group in _groups({name: timing for name, timing in timings.items() if name not in large} or timings):
        fastest = max(group, key=lambda name: timings[name].samples_per_s)
        if best is None or timings[fastest].samples_per_s > LARGE_GAIN * timings[best].samples_per_s:
            best = fastest
    assert best is not None, "somebody takes part"
    return best


def by_trust(timings: Mapping[str, Timing]) -> list[str]:
    """All of them, the one that deserves to be tried first at the front.

    >>> speed = lambda rate: Timing(rate, 1.0, 64, 1.0, None, 10)
    >>> by_trust({"diloco": speed(300), "acco": speed(200), "pace": speed(290), "stride": speed(250)})
    ['stride', 'pace', 'acco', 'diloco']
    """
    return [
        name
        for group in _groups(timings)
        for name in sorted(group, key=lambda name: timings[name].samples_per_s, reverse=True)
    ]


def _groups(timings: Mapping[str, Timing]) -> list[list[str]]:
    """Those of whom most is expected first; no group is empty."""
    large = _large(timings)
    groups = [[name for name in group if name in timings and name not in large] for group in BY_TRUST]
    groups.append([name for name in timings if not any(name in group for group in groups)])
    return [group for group in groups if group]


def _large(timings: Mapping[str, Timing]) -> list[str]:
    """Those whose updates are too few to trust."""
    usual = next((timings[name].samples_per_update for name in SAME_UPDATES if name in timings), math.inf)
    return [name for name in LATE if name in timings and timings[name].samples_per_update > LARGE_UPDATES * usual]
