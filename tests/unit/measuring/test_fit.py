"""From times to what a fleet file can say."""

from __future__ import annotations

import numpy as np
import pytest

from ownpace.fleet import Fleet, Machine
from ownpace.measuring.fit import fit_line, fit_pace, fit_sums, pace_of

SIZES = (8, 16, 32, 64)


def drawn(jitter: float, stalls: int = 0) -> list[tuple[int, float]]:
    """Times of 2 ms and 50 µs a sample, with jitter, and some micro-batches that took for ever."""
    rng = np.random.default_rng(0)
    times = [
        (size, (2e-3 + size * 5e-5) * float(1 + jitter * abs(rng.standard_normal())))
        for size in SIZES
        for _ in range(400)
    ]
    for stall in range(stalls):
        times[stall * 37] = times[stall * 37][0], 10.0
    return times


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.6])
def test_a_pace_is_found_again(jitter: float) -> None:
    found = fit_pace(drawn(jitter))
    assert found.s_per_batch == pytest.approx(2e-3, rel=0.1)
    assert found.s_per_sample == pytest.approx(5e-5, rel=0.1)
    assert found.jitter == pytest.approx(jitter, rel=0.15, abs=0.001)
    assert found.uncertainty < 0.15


def test_a_few_stalls_count_in_the_mean_and_not_as_jitter() -> None:
    found, without = fit_pace(drawn(0.1, stalls=16)), fit_pace(drawn(0.1))
    # One in a hundred, each counted as ten times the median.
    assert found.seconds(32) == pytest.approx(1.09 * without.seconds(32), rel=0.03)
    assert found.jitter == pytest.approx(without.jitter, rel=0.1)


def test_the_mean_time_is_kept() -> None:
    times = drawn(0.4)
    of_32 = [seconds for size, seconds in times if size == 32]
    assert fit_pace(times).seconds(32) == pytest.approx(sum(of_32) / len(of_32), rel=0.05)
    assert fit_pace([(8, 0.1)]).seconds(8) == pytest.approx(0.1)


def test_what_is_no_jitter_does_not_pass_for_a_lot_of_it() -> None:
    # Half of the time another process has the core.
    times = [(32, 0.1 if number % 2 else 1.0) for number in range(100)]
    found = fit_pace(times)
    assert found.jitter == pytest.approx(3.0)
    assert found.seconds(32) == pytest.approx(0.55)


def test_a_pace_that_changes_is_uncertain() -> None:
    steady = [(size, 1e-4 * size) for _ in range(100) for size in SIZES]
    changing = steady[:200] + [(size, 2 * seconds) for size, seconds in steady[200:]]
    assert fit_pace(steady).uncertainty < 1e-9
    assert fit_pace(changing).uncertainty > 0.3


def test_a_pace_is_one_that_a_fleet_may_have_whatever_was_measured() -> None:
    # Less time for more samples, as noise has it, on two machines.
    fast = fit_pace([(size, 1e-3 / size) for size in SIZES for _ in range(9)] + [(64, 1e-6)])
    slow = fit_pace([(size, 10.0 / size) for size in SIZES for _ in range(9)])
    machines = tuple(Machine(samples_per_s=pace_of(each.s_per_sample)) for each in (fast, slow))
    assert len(Fleet(machine=machines).workers) == 2
    assert pace_of(1e-12) == 1e9


def test_lines_are_never_below_zero() -> None:
    assert fit_line([(1, 1.0), (2, 1.0), (4, 1.0)])[0] == pytest.approx(1.0)
    intercept, slope = fit_line([(10, 1.0), (20, 3.0)])
    assert intercept == 0
    assert slope > 0
    assert fit_line([(32, 0.5)]) == (0.0, 0.5 / 32)


def test_links_reproduce_the_sums() -> None:
    workers, bandwidth, latency = 4, 1e8, 1e-3

    def ring_s(nbytes: float) -> float:
        return 2 * (workers - 1) / workers * nbytes / bandwidth + 2 * (workers - 1) * latency

    found = fit_sums(workers, [(1e3, ring_s(1e3)), (1e6, ring_s(1e6))], (5e5, ring_s(5e5)))
    assert found.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-6)
    assert found.latency_s == pytest.approx(latency, rel=1e-6)
