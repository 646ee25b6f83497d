"""The nodes of a run, and the groups they form. Every process makes the same list for itself; so do both engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Address, Group, Shard
from ownpace.core.learning.layout import Layout


class Roster:
    """All nodes of one generation, and the groups they form."""

    def __init__(
        self,
        subgroups: Sequence[Sequence[int]],
        workers: Sequence[Address],
        servers: Sequence[Address],
        communicators: Sequence[Address],
    ) -> None:
        self.workers = Group("workers", tuple(workers))
        self.servers = Group("servers", tuple(servers))
        self.communicators = Group("communicators", tuple(communicators))
        # In the order in which nodes are started: those that wait for others first.
        self.nodes = (*servers, *communicators, *workers)
        self.by_name = {node.name: node for node in self.nodes}
        self.groups = [self.workers, self.servers, self.communicators]
        self._subgroups: dict[Address, Group] = dict.fromkeys(servers, self.servers)
        for number, ranks in enumerate(subgroups):
            members = (*(workers[rank] for rank in ranks), *communicators[number : number + 1])
            group = Group(f"subgroup-{number}", members)
            self.groups.append(group)
            self._subgroups.update(dict.fromkeys(members, group))

    @classmethod
    def plan(
        cls,
        algorithm: Algorithm,
        workers: Sequence[str],
        num_servers: int,
        layout: Layout,
        sites: Mapping[str, str] | None = None,
    ) -> Roster:
        """The nodes that an algorithm needs on workers with these names; `sites` of workers and servers by name."""
        whole = Shard(0, 0, layout.size)
        shards = layout.shards(num_servers) if num_servers else ()
        at = [(sites or {}).get(name, "") for name in workers]
        divided = divide(algorithm, at)
        return cls(
            divided,
            [Address("worker", rank, name, whole, at[rank]) for rank, name in enumerate(workers)],
            [_server(shard, sites or {}) for shard in shards],
            [Address("communicator", i, f"communicator-{i}", whole, at[ranks[0]]) for i, ranks in enumerate(divided)]
            if algorithm.has_communicators
            else [],
        )

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What servers own; without servers, the whole vector."""
        return tuple(server.shard for server in self.servers) or (self.workers.members[0].shard,)

    def subgroup(self, node: Address) -> Group:
        """The group that a node belongs to."""
        return self._subgroups[node]

    def names(self) -> dict[str, list[str]]:
        """Every group that has members, by name."""
        return {group.name: [member.name for member in group] for group in self.groups if len(group)}


def _server(shard: Shard, sites: Mapping[str, str]) -> Address:
    name = f"server-{shard.index}"
    return Address("server", shard.index, name, shard, sites.get(name, ""))


def divide(algorithm: Algorithm, sites: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The algorithm's subgroups, each worker in exactly one, where each rank is at one of these sites.

    Raises:
        InputError: They are not such a division.
    """
    divided, num_workers = algorithm.subgroups_at(sites), len(sites)
    if sorted(rank for ranks in divided for rank in ranks) != list(range(num_workers)) or not all(divided):
        raise InputError(
            f"{type(algorithm).__name__} divides its workers into {divided}, but there are {num_workers}; each rank "
            "from 0 on must be in exactly one subgroup"
        )
    return divided
