"""Networks, part by part: what each link carries when, and who waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ownpace.fleet import Between, Fleet, Machine, Network


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Sites of so many machines each, linked well inside, and worse between."""

    sizes: Sequence[int]
    bandwidth: float
    latency: float
    between_bandwidth: float
    between_latency: float

    @property
    def of_members(self) -> list[int]:
        """The site of each machine."""
        return [site for site, size in enumerate(self.sizes) for _ in range(size)]

    def fleet(self, samples_per_s: float = 1000.0, io_s_per_sample: float = 0.0) -> Fleet:
        """The same in the package's terms."""
        between = Between(bandwidth_bytes_per_s=self.between_bandwidth, latency_s=self.between_latency)
        network = Network(bandwidth_bytes_per_s=self.bandwidth, latency_s=self.latency, between=between)
        machines = [
            Machine(samples_per_s=samples_per_s, io_s_per_sample=io_s_per_sample, count=size, site=f"site-{site}")
            for site, size in enumerate(self.sizes)
        ]
        return Fleet(machine=tuple(machines), network=network)


def ring_seconds(sites: Sites, members: Sequence[int], nbytes: float) -> float:
    """An all-reduce of these members, given by their sites, in this order: a part of the vector after the other.

    Each member sends 2(n−1) parts to the next. It sends one when it has received the one before, and its link is free.
    """
    n, part = len(members), nbytes / len(members)
    free, received = [0.0] * n, [0.0] * n
    for _ in range(2 * (n - 1)):
        arrivals = [0.0] * n
        for member in range(n):
            following = (member + 1) % n
            takes, latency = part / sites.bandwidth, sites.latency
            if members[member] != members[following]:
                takes, latency = max(takes, part / sites.between_bandwidth), latency + sites.between_latency
            free[member] = max(free[member], received[member]) + takes
            arrivals[following] = free[member] + latency
        received = arrivals
    return max(received)


def layered_seconds(sites: Sites, nbytes: float, computing: float, loading: float) -> float:
    """One update of Layered SGD, whose subgroups are sites: t_fb + t_reduce + max(t_io, t_AR(G)) + t_bcast.

    A communicator belongs to each subgroup: a chain has one latency for every worker in it. Both begin with the last.
    """
    largest = max(sites.sizes)
    chain = nbytes / sites.bandwidth + largest * sites.latency
    among = ring_seconds(sites, range(len(sites.sizes)), nbytes)
    return computing + chain + max(loading, among) + chain
