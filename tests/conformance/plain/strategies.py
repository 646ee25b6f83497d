"""Settings and fleets that Hypothesis draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import strategies as st
from tests.conformance.plain.setting import AWKWARD, Setting, Slow

from ownpace.fleet import paces


@st.composite
def drawn_settings(
    draw: st.DrawFn,
    *,
    least_workers: int = 1,
    most_workers: int = 5,
    most_batches: int = 60,
    most_lr: float = 0.2,
    latencies: Sequence[float] = (0.0, 1.7e-4, 3.1e-2),
    cosine: bool = False,
    server_link: bool = True,
    slow: bool = False,
) -> Setting:
    """Any setting.

    Args:
        draw: Hypothesis's.
        least_workers: The fewest workers.
        most_workers: The most workers.
        most_batches: How many batches of one worker the budget is, at the most.
        most_lr: The largest learning rate; what is applied late bears less.
        latencies: To choose from.
        cosine: Whether the learning rate may fall.
        server_link: Whether the server may have a link of its own bandwidth.
        slow: Whether one machine is slower for a while.
    """
    whole_paces = draw(st.lists(st.integers(200, 5000), min_size=least_workers, max_size=most_workers))
    batch_size = draw(st.integers(1, 12))
    server_bandwidths = st.integers(2_000, 1_000_000).map(lambda whole: whole + math.e) if server_link else st.nothing()
    return Setting(
        paces=tuple(pace + extra for pace, extra in zip(whole_paces, AWKWARD, strict=False)),
        batch_size=batch_size,
        micro_batch=draw(st.none() | st.integers(1, batch_size)),
        samples=draw(st.integers(1, most_batches * batch_size)),
        lr=draw(st.floats(0.01, most_lr)),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.01, 0.1])),
        cosine=draw(st.booleans()) if cosine else False,
        # From a message that takes as long as several batches to one that takes next to no time.
        bandwidth=draw(st.integers(2_000, 1_000_000)) + math.pi,
        server_bandwidth=draw(st.none() | server_bandwidths),
        latency=draw(st.sampled_from(latencies)),
        seed=draw(st.integers(0, 1000)),
        slow=draw(drawn_slowdowns(len(whole_paces))) if slow else None,
    )


@st.composite
def drawn_slowdowns(draw: st.DrawFn, num_workers: int) -> Slow:
    """One machine that is slower for a while, early in a run."""
    start = draw(st.integers(0, 100)) / 1000 * math.sqrt(2)
    length = draw(st.integers(1, 200)) / 1000 * math.sqrt(3)
    factor = draw(st.integers(1, 8)) + 1 / math.e
    return Slow(draw(st.integers(0, num_workers - 1)), start, start + length, factor)


jittery_fleets = st.lists(st.integers(200, 5000), min_size=1, max_size=5).map(
    lambda whole: paces(*(pace + extra for pace, extra in zip(whole, AWKWARD, strict=False)), jitter=0.3)
)
jobs = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 12),
        "samples": st.integers(1, 300),
        "seed": st.integers(0, 1000),
        "lr": st.sampled_from([0.03, 0.1]),
    }
)
# Where gradients are applied late: learning rates that bear it, and sums that take from no time to several batches.
late_settings = drawn_settings(most_batches=120, most_lr=0.05, latencies=(0.0, 1.7e-4, 3.1e-3), cosine=True)
sizings = st.sampled_from(["fixed", "equal-time"])
rules = st.sampled_from(["constant", "linear", "sqrt"])
# How far beyond the least that it can be a bound on the samples of an update is.
slacks = st.integers(0, 80)
