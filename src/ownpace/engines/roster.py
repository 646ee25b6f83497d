"""Who takes part in a run: every process makes the same list for itself."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Address, Group, Shard
from ownpace.core.learning.flat import Layout

HUB = "hub"
"""The name of whoever keeps the books: rank 0, or the launcher."""


class Roll:
    """All nodes of a run, and the groups they form."""

    def __init__(self, algorithm: Algorithm, workers: Sequence[str], num_servers: int, layout: Layout) -> None:
        whole = Shard(0, 0, layout.size)
        self.shards = layout.shards(num_servers) if num_servers else ()
        self.workers = Group("workers", tuple(Address("worker", i, name, whole) for i, name in enumerate(workers)))
        self.servers = tuple(Address("server", s.index, f"server-{s.index}", s) for s in self.shards)
        divided = algorithm.subgroups(len(workers))
        if sorted(rank for ranks in divided for rank in ranks) != list(range(len(workers))):
            raise InputError(
                f"{type(algorithm).__name__} divides its workers into {divided}, but there are {len(workers)}"
            )
        communicators = tuple(
            Address("communicator", i, f"communicator-{i}", whole)
            for i in range(len(divided) if algorithm.has_communicators else 0)
        )
        self.communicators = Group("communicators", communicators)
        self.nodes = (*self.workers, *self.servers, *communicators)
        self.by_name = {node.name: node for node in self.nodes}
        self._subgroups: dict[Address, Group] = {}
        servers = Group("servers", self.servers)
        self.groups = [self.workers, servers, self.communicators]
        self._subgroups.update(dict.fromkeys(self.servers, servers))
        for i, ranks in enumerate(divided):
            members = (*(self.workers.members[rank] for rank in ranks), *communicators[i : i + 1])
            group = Group(f"subgroup-{i}", members)
            self.groups.append(group)
            self._subgroups.update(dict.fromkeys(members, group))

    def subgroup(self, node: Address) -> Group:
        """The group that a node belongs to."""
        return self._subgroups[node]

    def names(self) -> dict[str, list[str]]:
        """Every group that has members, by name."""
        return {group.name: [member.name for member in group] for group in self.groups if len(group)}
