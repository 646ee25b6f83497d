"""Fleets by name, each of four machines, but for the one with several sites."""

from __future__ import annotations

from ownpace.fleet.model import Fleet, Machine, Slowdown
from ownpace.fleet.network import Between, Network

_JITTER = 0.05


def paces(*samples_per_s: float, jitter: float = _JITTER, network: Network | None = None) -> Fleet:
    """One machine for each pace."""
    machines = tuple(Machine(samples_per_s=pace, jitter=jitter) for pace in samples_per_s)
    return Fleet(machine=machines, network=network or Network())


def _straggler() -> Fleet:
    return Fleet(
        # |N(0,1)| is rarely above 3, so a jitter of 3 makes batches up to about ten times as long.
        machine=(
            Machine(samples_per_s=2000, count=3, jitter=_JITTER),
            Machine(samples_per_s=2000, name="straggler", jitter=3.0),
        )
    )


def _drift() -> Fleet:
    """Each machine in turn is three times slower for two seconds, in a cycle of eight, for five minutes."""
    turn_s, cycle_s, end_s = 2.0, 8.0, 320.0
    machines = []
    for index, pace in enumerate((3000, 3000, 2000, 2000)):
        starts = [turn_s * index + cycle_s * cycle for cycle in range(int(end_s / cycle_s))]
        slow = tuple(Slowdown(from_s=start, until_s=start + turn_s, factor=3.0) for start in starts)
        machines.append(Machine(samples_per_s=pace, jitter=_JITTER, slowdown=slow))
    return Fleet(machine=tuple(machines))


def _sites() -> Fleet:
    """Two sites of four machines: 10 Gbit/s inside, 1 Gbit/s between."""
    machines = [
        Machine(samples_per_s=pace, count=2, jitter=_JITTER, site=site, name=site)
        for site in ("east", "west")
        for pace in (3000, 1500)
    ]
    between = Between(bandwidth_bytes_per_s=1.25e8, latency_s=5e-3)
    return Fleet(
        machine=tuple(machines), network=Network(bandwidth_bytes_per_s=1.25e9, latency_s=1e-5, between=between)
    )


PRESETS: dict[str, tuple[str, Fleet]] = {
    "uniform": ("four alike", paces(2000, 2000, 2000, 2000)),
    "mild": ("two generations: paces 2:2:1:1", paces(3000, 3000, 1500, 1500)),
    "steep": ("four generations: paces 8:4:2:1", paces(8000, 4000, 2000, 1000)),
    "straggler": ("four alike, but one is randomly slow: its batches take 1 to 10 times as long", _straggler()),
    "drift": ("paces change while running: each in turn is three times slower", _drift()),
    "wan": (
        "paces 4:2:1:1 over 100 Mbit/s with 30 ms of latency",
        paces(4000, 2000, 1000, 1000, network=Network(bandwidth_bytes_per_s=1.25e7, latency_s=0.03)),
    ),
    "sites": ("two sites of four machines, paces 2:2:1:1: 10 Gbit/s inside, 1 Gbit/s and 5 ms between", _sites()),
}
"""Name → what it is in one line, and the fleet."""
