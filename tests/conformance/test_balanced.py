"""Balanced SGD's division: it settles, stays, and follows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event
from ownpace.fleet import Fleet, Machine, Network, Slowdown
from ownpace.report.summary import summarize
from ownpace.testing import simulate


def divisions(events: list[Event]) -> list[tuple[int, ...]]:
    """Each worker's samples in every update."""
    rounds: dict[int, dict[str, int]] = {}
    for event in events:
        if isinstance(event, Compute):
            sizes = rounds.setdefault(event.version, {})
            assert event.who not in sizes, "a share is one piece"
            sizes[event.who] = event.samples
    return [tuple(rounds[version][who] for who in sorted(rounds[version])) for version in sorted(rounds)]


def changes(rounds: list[tuple[int, ...]]) -> int:
    return sum(after != before for before, after in pairwise(rounds))


def fleet(*machines: Machine) -> Fleet:
    return Fleet(machine=machines, network=Network(latency_s=0.0, bandwidth_bytes_per_s=1e12))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_jitter_it_settles_and_stays(seed):
    machines = [Machine(samples_per_s=pace, jitter=0.05) for pace in (4000, 2000, 1000, 1000)]
    algorithm = make_algorithm("balanced")
    _, events = simulate(algorithm, fleet(*machines), batch_size=250, samples=1_000_000, timing_only=True, seed=seed)
    rounds = divisions(events)
    assert len(rounds) == 1000
    # Half of the batch and more is one machine's, in one piece.
    for size, share in zip(rounds[-1], (0.5, 0.25, 0.125, 0.125), strict=True):
        assert size == pytest.approx(1000 * share, rel=0.02)
    assert changes(rounds[:20]) <= 4
    assert changes(rounds[20:]) <= 6
    # What is lost is the slowest one's jitter: of four, 5 % · 1.5 at most times.
    assert summarize(events).share_of_limit > 0.94


def test_drift_is_followed_without_stalls():
    # A machine that becomes a tenth slower ten times, and then fast again at once.
    slower = tuple(Slowdown(from_s=5.0 * n, until_s=5.0 * (n + 1), factor=1.1**n) for n in range(1, 10))
    machines = [Machine(samples_per_s=2000), Machine(samples_per_s=2000, slowdown=slower), Machine(samples_per_s=1000)]
    _, events = simulate(
        make_algorithm("balanced"), fleet(*machines), batch_size=200, samples=280_000, timing_only=True
    )
    rounds = divisions(events)
    assert changes(rounds) < 60
    assert summarize(events).share_of_limit > 0.96
    assert rounds[-1][0] == pytest.approx(240, rel=0.03)
