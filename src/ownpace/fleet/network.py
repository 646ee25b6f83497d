"""How machines are linked: each by a link of its own, and sites by uplinks that their machines share."""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.core.contract.errors import InputError, shown
from ownpace.core.settings import at_most, not_negative, positive

LONGEST_NAME = 64
"""Bytes: names become those of files and addresses of messages, which end at 255."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """The uplink of each site: all that leaves it passes there, and all that comes to it."""

    bandwidth_bytes_per_s: float | None = None
    """In each direction, shared by the site's machines (None: as much as they like)."""
    latency_s: float = 0.0
    """From site to site, besides that of the machines' links."""

    def __post_init__(self) -> None:
        positive(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        _check_bandwidth(self.bandwidth_bytes_per_s)
        not_negative(latency_s=self.latency_s)
        at_most(1e6, latency_s=self.latency_s)


@dataclass(frozen=True, kw_only=True)
class Network:
    """The link of each machine, and what is between sites."""

    bandwidth_bytes_per_s: float = 1.25e8
    """In each direction."""
    latency_s: float = 1e-4
    between: Between | None = None
    """None: sites are linked as well as the machines of one site."""
    prescribed: bool = False
    """Whether processes hold messages to and from servers back until they would have arrived on such links. Without
    it, only the virtual engine looks at bandwidths, and processes have the network that there is."""
    direct_bytes: int = 0
    """What has at most this many bytes is summed by sending it from each worker to every other: one hop, where a ring
    of n has 2(n−1), but n/2 times as many bytes."""

    def __post_init__(self) -> None:
        positive(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        not_negative(latency_s=self.latency_s, direct_bytes=self.direct_bytes)
        at_most(1e6, latency_s=self.latency_s)
        _check_bandwidth(self.bandwidth_bytes_per_s)
        if self.direct_bytes and self.between is not None:
            raise InputError(
                f"direct_bytes is {self.direct_bytes}, but there is [network.between]; between sites all sums go "
                "around a ring, so leave one of the two out"
            )


@dataclass(frozen=True, kw_only=True)
class ServerMachine:
    """A parameter server's machine."""

    bandwidth_bytes_per_s: float | None = None
    """Of its link, each direction (default: the network's)."""
    host: int = 0
    """Under torchrun on several hosts: the number of the host it runs on."""
    site: str | None = None
    """Where it is (None: with the first worker)."""

    def __post_init__(self) -> None:
        positive(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)
        _check_bandwidth(self.bandwidth_bytes_per_s)
        not_negative(host=self.host)
        check_site(self.site or "")


def check_site(site: str) -> None:
    """Raise if that cannot be the name of a site."""
    if len(site.encode(errors="replace")) > LONGEST_NAME or not site.isprintable():
        raise InputError(
            f"site is {shown(site)}; its name must have at most {LONGEST_NAME} bytes, all of them printable"
        )


def _check_bandwidth(bandwidth_bytes_per_s: float | None) -> None:
    """Raise if a link is so slow that nothing ever passes it."""
    if bandwidth_bytes_per_s is not None and bandwidth_bytes_per_s < 1:
        raise InputError(f"bandwidth_bytes_per_s is {bandwidth_bytes_per_s}; it must be at least 1")
