"""Fleets by name, each of four machines."""

from __future__ import annotations

from ownpace.fleet.model import Fleet, Machine, Network, Slowdown

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
}
"""Name → what it is in one line, and the fleet."""
