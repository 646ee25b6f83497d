"""How long a ring all-reduce takes that goes from site to site."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Hop(NamedTuple):
    """What one part of a vector needs from one member of a ring to the next."""

    takes_s: float
    """Of the link: the next part waits for so long."""
    latency_s: float
    """Besides; nobody waits for it but the receiver."""


@lru_cache(maxsize=256)
def ring_s(sizes: tuple[int, ...], inside: Hop, across: Hop) -> float:
    """The time of a ring over sites of these sizes, one after the other, each of its borders crossed once a lap.

    Every member sends 2(n−1) parts, each when the link is done with the one before and when it has received what goes
    into it. So what takes longest is a path of 2(n−1) steps: in each it waits for its link, or goes on to the next.
    """
    num_members = sum(sizes)
    steps = 2 * (num_members - 1)
    if inside.takes_s + inside.latency_s >= across.takes_s:
        # Going on always takes longer than waiting. The path is two laps less two steps, and crosses what it can.
        borders = 2 * len(sizes) - max(0, 3 - max(sizes))
        further_s = across.takes_s - inside.takes_s + across.latency_s - inside.latency_s
        return steps * (inside.takes_s + inside.latency_s) + borders * further_s
    # It waits at a border. Going on to the next is worth it where its latency outweighs the quick steps on the way.
    quicker_s = across.takes_s - inside.takes_s - inside.latency_s
    most_s = 0.0
    for first in range(len(sizes)):
        gain_s, left, site = 0.0, steps - 1, first
        while left >= sizes[site]:
            left -= sizes[site]
            gain_s += across.latency_s - (sizes[site] - 1) * quicker_s
            most_s = max(most_s, gain_s)
            site = (site + 1) % len(sizes)
    return steps * across.takes_s + across.latency_s + most_s


__all__ = ["Hop", "ring_s"]
