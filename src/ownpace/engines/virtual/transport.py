"""The network: what a transfer costs, and what links do to each other.

Each node has one link, with a bandwidth in each direction, which carries transfers in the order in which they
were started. Ten pushes at once into one server thus take ten times as long as one. A transfer occupies the
sender's way out and the receiver's way in for `bytes / bandwidth` each, at the same time, and arrives when both
are done, a latency later. A link that is waiting for a slower or busy partner does not hold up others: its
capacity is used only for the time that its own bandwidth needs, from when the transfer was asked for.

    send                    bytes / bandwidth + latency
    all-reduce, n members   ring: 2(n−1)/n · bytes / bandwidth + 2(n−1) · latency, at the slowest member's bandwidth
                            of `direct_bytes` at most: (n−1) · bytes / bandwidth + latency
                            in buckets, while it is computed: each so long, but only the first part of it takes up links
    reduce, broadcast       pipelined chain: bytes / bandwidth + (n−1) · latency, at the slowest member's bandwidth

Where something is between sites, what goes from one to another also passes the uplink of the one, out, and that of
the other, in. These are links like the others, which all nodes of a site share.

    send                    bytes / the slowest of the four + latency + latency between
    all-reduce              ring, site by site: 2(n−1) steps, in each of which bytes / n pass every border (ring.py)
    reduce, broadcast       chain, site by site: at the slowest bandwidth, a latency between more for every border

The cost of a send is computed where it is sent, in `VirtualNode.send`: it is the hottest code of a run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ownpace.engines.virtual.ring import Hop, ring_s
from ownpace.fleet import Fleet


class Uplink:
    """One site's connection to the others."""

    __slots__ = ("bandwidth_bytes_per_s", "in_free_s", "latency_s", "out_free_s")

    def __init__(self, bandwidth_bytes_per_s: float, latency_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.latency_s = latency_s
        self.out_free_s = 0.0
        self.in_free_s = 0.0

    def take_out(self, now: float, nbytes: float) -> float:
        """Take up the way out; until when."""
        self.out_free_s = max(now, self.out_free_s) + nbytes / self.bandwidth_bytes_per_s
        return self.out_free_s

    def take_in(self, now: float, nbytes: float) -> float:
        """Take up the way in; until when."""
        self.in_free_s = max(now, self.in_free_s) + nbytes / self.bandwidth_bytes_per_s
        return self.in_free_s


class Link(Protocol):
    """One node's connection to the network."""

    bandwidth_bytes_per_s: float
    out_free_s: float
    """Until when its way out is taken."""
    in_free_s: float
    """Until when its way in is taken."""
    uplink: Uplink | None
    """Of its site, where something is between sites."""


class Ways(NamedTuple):
    """The uplinks that a chain passes: out of sites, and into them."""

    out: Sequence[Uplink] = ()
    into: Sequence[Uplink] = ()


NO_WAYS = Ways()


def uplinks(fleet: Fleet) -> dict[str, Uplink]:
    """The uplink of every site, by its name; none where nothing is between sites."""
    between = fleet.network.between
    if between is None:
        return {}
    sites = {worker.machine.site for worker in fleet.workers} | set(map(fleet.site_of, fleet.server))
    bandwidth = between.bandwidth_bytes_per_s or math.inf
    return {site: Uplink(bandwidth, between.latency_s) for site in sorted(sites)}


def cross(sender: Link, receiver: Link, nbytes: float, times: tuple[float, float, float]) -> float:
    """Take up two sites' uplinks for a transfer: when it is through.

    Args:
        sender: The one's link.
        receiver: The other's.
        nbytes: What is sent.
        times: Now; when it starts; and when it would be through if both were at one site.
    """
    out, into = _uplink(sender), _uplink(receiver)
    now, start, done = times
    # As with the receiver's link: booked from now on, even if the bytes come later.
    through = max(out.take_out(now, nbytes), into.take_in(now, nbytes), start + nbytes / out.bandwidth_bytes_per_s)
    return max(done, through) + out.latency_s


def all_reduce(now: float, links: Sequence[Link], nbytes: int, latency_s: float) -> tuple[float, float]:
    """Take up all links for a ring all-reduce: when it starts, and when it ends."""
    n = len(links)
    passed = _ordered(links)
    if len(passed) < 2:
        return _together(now, links, 2 * (n - 1) / n * nbytes, 2 * (n - 1) * latency_s)
    takes_s = _ring_s(links, passed, nbytes, latency_s)
    return _across(now, links, takes_s, 2 * (n - 1) * nbytes / n, Ways(passed, passed))


def all_reduce_part(now: float, links: Sequence[Link], nbytes: int, latency_s: float) -> tuple[float, float]:
    """The same for one bucket of several: the next may follow when the last byte has left, before it has arrived."""
    start, end = all_reduce(now, links, nbytes, latency_s)
    passed = _ordered(links)
    under_way_s = 2 * (len(links) - 1) * latency_s if len(passed) < 2 else _ring_s(links, passed, 0, latency_s)
    for link in links:
        link.out_free_s = link.in_free_s = max(start, end - under_way_s)
    return start, end


def exchange(now: float, links: Sequence[Link], nbytes: int, latency_s: float) -> tuple[float, float]:
    """Take up all links for an all-reduce in which every member sends all of its own to every other."""
    n = len(links)
    return _together(now, links, (n - 1) * nbytes, latency_s if n > 1 else 0.0)


def _ring_s(links: Sequence[Link], passed: Sequence[Uplink], nbytes: int, latency_s: float) -> float:
    """How long a ring takes that passes these uplinks."""
    part, uplink = nbytes / len(links), passed[0]
    inside = Hop(part / _slowest(links), latency_s)
    across = Hop(max(inside.takes_s, part / uplink.bandwidth_bytes_per_s), latency_s + uplink.latency_s)
    sizes = Counter(map(_uplink, links))
    return ring_s(tuple(sizes[uplink] for uplink in passed), inside, across)


def chain(
    now: float, links: Sequence[Link], nbytes: int, latency_s: float, ways: Ways = NO_WAYS
) -> tuple[float, float]:
    """Take up all links for a reduce or a broadcast: when it starts, and when it ends."""
    n = len(links)
    # A group of one moves nothing. The formula of the ring says so by itself, this one does not.
    if not ways.out:
        return _together(now, links, nbytes if n > 1 else 0, (n - 1) * latency_s)
    uplink = ways.out[0]
    takes_s = nbytes / min(_slowest(links), uplink.bandwidth_bytes_per_s)
    return _across(now, links, takes_s + (n - 1) * latency_s + len(ways.out) * uplink.latency_s, nbytes, ways)


def ways(links: Sequence[Link], *, first: Link | None = None, last: Link | None = None) -> Ways:
    """What a chain passes that begins, or ends, at the site of that link."""
    end = first or last
    assert end is not None
    passed = _ordered([end, *links])
    if len(passed) < 2:
        return NO_WAYS
    if first is None:
        passed.reverse()
    return Ways(passed[:-1], passed[1:])


def _ordered(links: Sequence[Link]) -> list[Uplink]:
    """The uplinks of the members' sites, if something is between sites."""
    if links[0].uplink is None:
        return []
    return list(dict.fromkeys(map(_uplink, links)))


def _uplink(link: Link) -> Uplink:
    assert link.uplink is not None, "either all nodes have an uplink, or none"
    return link.uplink


def _slowest(links: Sequence[Link]) -> float:
    return min([link.bandwidth_bytes_per_s for link in links])


def _free_s(links: Sequence[Link]) -> float:
    return max(max([link.out_free_s for link in links]), max([link.in_free_s for link in links]))


def _across(now: float, links: Sequence[Link], takes_s: float, nbytes: float, ways: Ways) -> tuple[float, float]:
    """Take up all links for this time, and uplinks for this many bytes."""
    start = max(now, _free_s(links))
    free_s = [uplink.take_out(now, nbytes) for uplink in ways.out] + [
        uplink.take_in(now, nbytes) for uplink in ways.into
    ]
    end = max(start + takes_s, *free_s)
    for link in links:
        link.out_free_s = link.in_free_s = end
    return start, end


def _together(now: float, links: Sequence[Link], nbytes: float, latency_s: float) -> tuple[float, float]:
    # All links or none: a collective begins when its busiest member is free, and no member can leave it early.
    start = max(now, _free_s(links))
    end = start + nbytes / _slowest(links) + latency_s
    for link in links:
        link.out_free_s = link.in_free_s = end
    return start, end
