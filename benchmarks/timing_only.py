"""How fast virtual time passes when only time is simulated: `async` on ever larger fleets.

    python benchmarks/timing_only.py

Prints gradients answered per bare SimPy timeout. The yardstick is the cheapest thing SimPy can do for a fleet of
that size: as many processes, each waiting for timeouts, of the same random lengths as the workers' batches. Both
are timed in turns, in one run; the figures are medians over the turns. CPU time, not the clock's: both use one thread,
and what else the machine does is not counted, but for its use of memory and caches.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from array import array

import numpy as np
import simpy

from ownpace.algorithms.async_ import AsyncSgd
from ownpace.engines import Job, run_virtual
from ownpace.fleet import Fleet, Machine, ServerMachine
from ownpace.tasks import Quadratic
from table import print_table

TURNS = 3
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
    start = time.process_time()
    env.run()
    return each * num_processes / (time.process_time() - start)


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
        if event.kind == "end":
            done = event.sums.updates

    start = time.process_time()
    run_virtual(job, emit)
    return done / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--huge", action="store_true", help="100,000 workers, too")
    options = parser.parse_args()
    sizes = {100: 300_000, 1_000: 300_000, 10_000: 1_000_000}
    if options.huge:
        sizes[100_000] = 1_000_000
    rates: dict[int, list[tuple[float, float]]] = {num_workers: [] for num_workers in sizes}
    for _ in range(options.turns):
        for num_workers, gradients in sizes.items():
            bare = bare_timeouts_per_s(num_workers, gradients)
            rates[num_workers].append((bare, gradients_per_s(num_workers, gradients)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    rows = []
    for num_workers, gradients in sizes.items():
        bare, ours = (statistics.median(column) for column in zip(*rates[num_workers], strict=True))
        ratio = statistics.median(own / other for other, own in rates[num_workers])
        pairs = zip(rates[100], rates[num_workers], strict=True)
        growth = statistics.median(small[1] / large[1] for small, large in pairs)
        numbers = (num_workers, gradients, round(bare), round(ours))
        rows.append((*(f"{n:,}" for n in numbers), f"{ratio:.3f}", f"{growth:.2f}"))
    print_table(("workers", "gradients", "bare timeouts/s", "gradients/s", "ratio", "cost / that of 100"), rows)
    print(f"\nPeak memory: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
