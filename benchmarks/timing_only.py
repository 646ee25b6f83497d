"""How fast virtual time passes when only time is simulated: `async` on ever larger fleets.

    python benchmarks/timing_only.py

Prints gradients answered per bare SimPy timeout. The yardstick is the cheapest thing SimPy can do for a fleet of
that size: as many processes, each waiting for timeouts, of the same random lengths as the workers' batches. Both
are timed in turns, in one run; the figures are medians over the turns.
"""

from __future__ import annotations

import resource
import statistics
import time
from array import array

import numpy as np
import simpy

from ownpace.algorithms import AsyncSgd
from ownpace.engines import Job, run_virtual
from ownpace.fleet import Fleet, Machine, ServerMachine
from ownpace.tasks import Quadratic
from table import print_table

TURNS = 5
JITTER = 0.1
MIB = 2**20


def bare_timeouts_per_s(num_processes: int, timeouts: int) -> float:
    env = simpy.Environment()
    each = timeouts // num_processes
    rng = np.random.default_rng(0)

    def process(delays: array):
        for delay in delays:
            yield env.timeout(delay)

    for _ in range(num_processes):
        env.process(process(array("d", (1 + JITTER * np.abs(rng.standard_normal(each))).tobytes())))
    start = time.perf_counter()
    env.run()
    return each * num_processes / (time.perf_counter() - start)


def gradients_per_s(num_workers: int, gradients: int) -> float:
    machine = Machine(samples_per_s=1, count=num_workers, jitter=JITTER)
    fleet = Fleet(machine=(machine,), server=(ServerMachine(bandwidth_bytes_per_s=1e12),))
    job = Job(
        algorithm=AsyncSgd(),
        task=Quadratic(),
        fleet=fleet,
        batch_size=1,
        samples=gradients,
        timing_only=True,
        detail=False,
    )
    done = 0

    def emit(event) -> None:
        nonlocal done
        done = getattr(event, "updates", 0)

    start = time.perf_counter()
    run_virtual(job, emit)
    return done / (time.perf_counter() - start)


def main() -> None:
    rows = []
    first_cost = 0.0
    for num_workers, gradients in ((100, 300_000), (1_000, 300_000), (10_000, 1_000_000)):
        turns = [
            (bare_timeouts_per_s(num_workers, gradients), gradients_per_s(num_workers, gradients)) for _ in range(TURNS)
        ]
        bare = statistics.median(turn[0] for turn in turns)
        ours = statistics.median(turn[1] for turn in turns)
        ratio = statistics.median(turn[1] / turn[0] for turn in turns)
        first_cost = first_cost or 1 / ours
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
        numbers = (num_workers, gradients, round(bare), round(ours))
        rows.append((*(f"{n:,}" for n in numbers), f"{ratio:.3f}", f"{1 / ours / first_cost:.2f}", f"{peak:,.0f}"))
    heads = ("workers", "gradients", "bare timeouts/s", "gradients/s", "ratio", "cost / that of 100", "peak MiB")
    print_table(heads, rows)


if __name__ == "__main__":
    main()
