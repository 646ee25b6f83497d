"""The network: what a transfer costs, and what links do to each other.

Each node has one link, with a bandwidth in each direction, which carries transfers in the order in which they
were started. Ten pushes at once into one server thus take ten times as long as one. A transfer occupies the
sender's way out and the receiver's way in for `bytes / bandwidth` each, at the same time, and arrives when both
are done, a latency later. A link that is waiting for a slower or busy partner does not hold up others: its
capacity is used only for the time that its own bandwidth needs, from when the transfer was asked for.

    send                    bytes / bandwidth + latency
    all-reduce, n members   ring: 2(n−1)/n · bytes / bandwidth + 2(n−1) · latency, at the slowest member's bandwidth
    reduce, broadcast       pipelined chain: bytes / bandwidth + (n−1) · latency, at the slowest member's bandwidth

The cost of a send is computed where it is sent, in `VirtualNode.send`: it is the hottest code of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Link(Protocol):
    """One node's connection to the network."""

    bandwidth_bytes_per_s: float
    out_free_s: float
    """Until when its way out is taken."""
    in_free_s: float
    """Until when its way in is taken."""


def all_reduce(now: float, links: Sequence[Link], nbytes: int, latency_s: float) -> tuple[float, float]:
    """Take up all links for a ring all-reduce: when it starts, and when it ends."""
    n = len(links)
    return _together(now, links, 2 * (n - 1) / n * nbytes, 2 * (n - 1) * latency_s)


def chain(now: float, links: Sequence[Link], nbytes: int, latency_s: float) -> tuple[float, float]:
    """Take up all links for a reduce or a broadcast: when it starts, and when it ends."""
    n = len(links)
    # A group of one moves nothing. The formula of the ring says so by itself, this one does not.
    return _together(now, links, nbytes if n > 1 else 0, (n - 1) * latency_s)


def _together(now: float, links: Sequence[Link], nbytes: float, latency_s: float) -> tuple[float, float]:
    # All links or none: a collective begins when its busiest member is free, and no member can leave it early.
    start = max(now, *(max(link.out_free_s, link.in_free_s) for link in links))
    end = start + nbytes / min(link.bandwidth_bytes_per_s for link in links) + latency_s
    for link in links:
        link.out_free_s = link.in_free_s = end
    return start, end
