"""What is kept of servers elsewhere: a server that dies comes back as it was a second ago at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ownpace.engines.virtual.clock import Planned
from ownpace.engines.virtual.nodes import VirtualServer
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation

SNAPSHOT_S = 1.0
"""Time between two snapshots."""


class ServerSnapshot(NamedTuple):
    """One server as it was."""

    replica: Replica
    samples: int
    version: int
    ahead: float
    account: tuple[int, list[int], int]
    """Whose samples were used up."""


class ServerSnapshots:
    """The latest snapshot of each server. They cost no time: real ones are taken while training goes on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._servers: Sequence[VirtualServer] = ()
        self._latest: list[ServerSnapshot] = []
        # Where no server dies, none are needed.
        times = [fault.at_s for fault in simulation.job.fleet.fault if fault.server is not None]
        self._until_s = max(times, default=-math.inf)

    def plan(self, after_s: float) -> None:
        """Take one every full second from then on."""
        following = (after_s // SNAPSHOT_S + 1) * SNAPSHOT_S
        if following <= self._until_s:
            self._simulation.clock.at(following, Planned(self._take_and_plan))

    def begin(self, servers: Sequence[VirtualServer]) -> None:
        """A generation begins with these servers."""
        self._servers = servers
        self.take()

    def take(self) -> None:
        """Take one of each server."""
        if self._until_s < self._simulation.clock.time:
            return
        self._latest = [
            ServerSnapshot(
                server.committed.kept(),
                server.progress.samples,
                server.progress.version,
                server.progress.ahead,
                self._simulation.accounts.copy(index),
            )
            for index, server in enumerate(self._servers)
        ]

    def restore(self, index: int) -> int:
        """Let a server be what it was at its latest snapshot; returns how many updates are lost."""
        server, snapshot = self._servers[index], self._latest[index]
        lost = server.progress.version - snapshot.version
        server.begin_at(snapshot.replica)
        server.progress.begin_at(snapshot.samples, (snapshot.version,), snapshot.ahead)
        self._simulation.accounts.go_back(index, snapshot.account)
        return lost

    def _take_and_plan(self) -> None:
        self.take()
        self.plan(self._simulation.clock.time)


__all__ = ["SNAPSHOT_S", "ServerSnapshots"]
