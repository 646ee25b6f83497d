"""Whether virtual clocks are right: against what can be computed by hand.

    python benchmarks/clocks.py

`sync`: the time per update on fleets without jitter against max compute + ring. `async`: bytes per second into a server
whose link is the bottleneck, against that link's bandwidth.
"""

from __future__ import annotations

from ownpace import make_algorithm
from ownpace.core.contract.events import Update
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, paces
from ownpace.report import summarize
from ownpace.testing import simulate
from table import print_table

PARAMETER_BYTES = 40


def sync_error(speeds: list[float], network: Network, batch: int = 32) -> float:
    """The largest relative error of an update's time."""
    n = len(speeds)
    fleet = paces(*speeds, jitter=0.0, network=network)
    _, events = simulate(make_algorithm("sync"), fleet, batch_size=batch, samples=100 * n * batch, timing_only=True)
    ring = 2 * (n - 1) / n * PARAMETER_BYTES / network.bandwidth_bytes_per_s + 2 * (n - 1) * network.latency_s
    period = batch / min(speeds) + ring
    times = [event.t for event in events if isinstance(event, Update)]
    return max(abs(time / (period * k) - 1) for k, time in enumerate(times, 1))


def async_share(num_workers: int, bandwidth: float) -> float:
    """Bytes of gradients per second, as a share of the bandwidth of the server's link."""
    fleet = Fleet(
        machine=(Machine(samples_per_s=1e7, count=num_workers),),
        network=Network(bandwidth_bytes_per_s=100 * bandwidth, latency_s=1e-6),
        server=(ServerMachine(bandwidth_bytes_per_s=bandwidth),),
    )
    _, events = simulate(make_algorithm("async"), fleet, batch_size=1, samples=5000, timing_only=True)
    summary = summarize(events)
    return summary.updates * PARAMETER_BYTES / summary.seconds / bandwidth


def main() -> None:
    fleets = ([1000.0], [4000.0, 2000.0, 1000.0, 1000.0], [997.0, 123.4, 5678.9], [2000.0] * 64)
    networks = (Network(), Network(bandwidth_bytes_per_s=777.0, latency_s=0.0123))
    rows = [
        (f"sync, {len(speeds)} workers", "time per update, error", f"{sync_error(speeds, network):.1e}")
        for speeds in fleets
        for network in networks
    ]
    rows += [
        (f"async, {count} workers", "share of the link", f"{async_share(count, 4000.0):.4f}") for count in (4, 10, 100)
    ]
    print_table(("what", "measure", "value"), rows)


if __name__ == "__main__":
    main()
