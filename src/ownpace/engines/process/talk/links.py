"""Prescribed links: messages between processes are held back until they would have arrived, as paces are prescribed.

It is the model of the virtual engine (fleets.md): a message takes up its sender's way out and its receiver's way in,
each for its bytes over that link's bandwidth, in the order of sending, and arrives a latency after both. The sender
knows when its own link is free, and says so; the receiver does the rest, and keeps the message until then. Real
transfers take real time meanwhile, so what is prescribed must be slower than what is there. Collectives are not held
back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Address
from ownpace.engines.job import Job
from ownpace.engines.process.talk.wire import Packet

_NOTE_BYTES = 8


@dataclass(frozen=True)
class PrescribedLinks:
    """The bandwidths of all nodes, and the latency between them."""

    of_workers: float
    of_servers: tuple[float, ...]
    latency_s: float

    @classmethod
    def of(cls, job: Job) -> PrescribedLinks | None:
        """Those of a job, if its fleet prescribes them.

        Raises:
            InputError: It also has uplinks between sites, which no node knows the state of.
        """
        network = job.fleet.network
        if not network.prescribed:
            return None
        if network.between is not None:
            raise InputError("[network] is prescribed, and has [network.between]; processes cannot prescribe uplinks")
        usual = network.bandwidth_bytes_per_s
        servers = tuple(server.bandwidth_bytes_per_s or usual for server in job.servers)
        return cls(usual, servers, network.latency_s)

    def bandwidth(self, node: Address) -> float:
        """Of one node's link, each direction."""
        return self.of_servers[node.index] if node.role == "server" else self.of_workers


class PrescribedLink:
    """One node's link, and the messages that have come too early."""

    def __init__(self, links: PrescribedLinks, own: Address) -> None:
        self._links = links
        self._bandwidth = links.bandwidth(own)
        self._out_free_s = 0.0
        self._in_free_s = 0.0
        self._held: list[tuple[float, int, Address, Packet]] = []
        self._numbers = itertools.count()

    def leave(self, packet: Packet) -> None:
        """Take up the way out for a message that is about to be sent."""
        packet.start_s = max(packet.sent_s, self._out_free_s)
        self._out_free_s = packet.start_s + _nbytes(packet) / self._bandwidth

    def hold(self, sender: Address, packet: Packet) -> None:
        """Take up the way in for a message that has come, and keep it until it is due."""
        nbytes = _nbytes(packet)
        take_s = nbytes / self._bandwidth
        self._in_free_s = max(packet.sent_s, self._in_free_s) + take_s
        through_s = max(
            packet.start_s + nbytes / self._links.bandwidth(sender), self._in_free_s, packet.start_s + take_s
        )
        heapq.heappush(self._held, (through_s + self._links.latency_s, next(self._numbers), sender, packet))

    def due(self, now: float) -> Iterator[tuple[Address, Packet]]:
        """The messages that are due, in order."""
        while self._held and self._held[0][0] <= now:
            _, _, sender, packet = heapq.heappop(self._held)
            yield sender, packet

    def next_s(self, now: float) -> float | None:
        """How long until the next is due."""
        return max(0.0, self._held[0][0] - now) if self._held else None

    def clear(self) -> None:
        """Forget all messages."""
        self._held.clear()


def _nbytes(packet: Packet) -> int:
    # As in virtual time: headers are free, and so are the notes of what has a body.
    return _NOTE_BYTES * len(packet.notes) if packet.body is None else packet.body.nbytes


__all__ = ["PrescribedLink", "PrescribedLinks"]
