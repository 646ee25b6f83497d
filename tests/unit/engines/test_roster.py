"""Who takes part in a run, and in which groups."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.layout import Layout
from ownpace.engines.roster import Roster, divide

NAMES = ("fast", "slow", "slower", "slowest")


def layout(num_layers: int = 4) -> Layout:
    return Layout(nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(num_layers)]))


@dataclass(frozen=True, kw_only=True)
class Divided(Algorithm):
    """Divides its workers as it is told to."""

    division: tuple[tuple[int, ...], ...]

    async def worker(self, me):
        pass

    def subgroups(self, num_workers):
        return self.division


class Together(Algorithm):
    async def worker(self, me):
        pass


class Served(Together):
    async def server(self, me):
        pass


class Connected(Divided):
    async def communicator(self, me):
        pass


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Any division of some workers in which each is once, in any order."""
    ranks = draw(st.permutations(range(draw(st.integers(1, 8)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(ranks) - 1)))) if len(ranks) > 1 else []
    ends = [0, *cuts, len(ranks)]
    return tuple(tuple(ranks[a:b]) for a, b in itertools.pairwise(ends))


@given(partitions())
def test_a_partition_is_taken_as_it_is(division: tuple[tuple[int, ...], ...]) -> None:
    assert divide(Divided(division=division), [""] * sum(map(len, division))) == division


@given(partitions(), st.data())
def test_what_is_no_partition_is_refused(division: tuple[tuple[int, ...], ...], data: st.DataObject) -> None:
    num_workers = sum(map(len, division))
    group = data.draw(st.integers(0, len(division) - 1), label="group")
    spoilt = list(division)
    match data.draw(st.sampled_from(["twice", "missing", "beyond", "negative", "empty"])):
        case "twice":
            spoilt[group] = (*division[group], data.draw(st.integers(0, num_workers - 1)))
        case "missing":
            spoilt[group] = division[group][1:]
        case "beyond":
            spoilt[group] = (*division[group][1:], num_workers)
        case "negative":
            spoilt[group] = (*division[group][1:], -1)
        case "empty":
            spoilt.insert(group, ())
    with pytest.raises(InputError, match="in exactly one subgroup"):
        divide(Divided(division=tuple(spoilt)), [""] * num_workers)


def test_the_error_says_who_divides_what_among_how_many() -> None:
    with pytest.raises(InputError, match=r"Divided divides its workers into \(\(0, 1\), \(1, 2\)\), but there are 4"):
        Roster.plan(Divided(division=((0, 1), (1, 2))), NAMES, 0, layout())


def test_without_servers_everybody_owns_everything() -> None:
    roster = Roster.plan(Together(), NAMES, 0, layout())
    assert [(node.role, node.index, node.name) for node in roster.nodes] == [
        ("worker", rank, name) for rank, name in enumerate(NAMES)
    ]
    assert [(shard.index, shard.start, shard.stop) for shard in roster.shards] == [(0, 0, 12)]
    assert {(node.shard.start, node.shard.stop) for node in roster.workers} == {(0, 12)}
    assert roster.names() == {"workers": list(NAMES), "subgroup-0": list(NAMES)}


@given(st.integers(1, 4), st.integers(1, 5))
def test_servers_share_the_layers(num_servers: int, num_workers: int) -> None:
    names = [f"worker-{rank}" for rank in range(num_workers)]
    roster = Roster.plan(Served(), names, num_servers, layout())
    assert [server.name for server in roster.servers] == [f"server-{index}" for index in range(num_servers)]
    assert [server.shard for server in roster.servers] == list(roster.shards) == list(layout().shards(num_servers))
    assert all(roster.subgroup(server) is roster.servers for server in roster.servers)
    assert {worker.shard.stop for worker in roster.workers} == {12}
    assert roster.names()["servers"] == [server.name for server in roster.servers]


@given(partitions())
def test_every_subgroup_has_its_workers_and_its_communicator_last(division: tuple[tuple[int, ...], ...]) -> None:
    names = [f"worker-{rank}" for rank in range(sum(map(len, division)))]
    roster = Roster.plan(Connected(division=division), names, 0, layout())
    assert len(roster.communicators) == len(division)
    for number, ranks in enumerate(division):
        members = roster.names()[f"subgroup-{number}"]
        assert members == [*(names[rank] for rank in ranks), f"communicator-{number}"]
        for name in members:
            assert roster.subgroup(roster.by_name[name]).name == f"subgroup-{number}"


@given(partitions())
def test_subgroups_without_communicators_are_workers_alone(division: tuple[tuple[int, ...], ...]) -> None:
    names = [f"worker-{rank}" for rank in range(sum(map(len, division)))]
    roster = Roster.plan(Divided(division=division), names, 0, layout())
    assert len(roster.communicators) == 0
    assert "communicators" not in roster.names()
    for rank, worker in enumerate(roster.workers):
        group = next(group for group in division if rank in group)
        assert [member.index for member in roster.subgroup(worker)] == list(group)


def test_every_node_is_listed_once_and_found_by_its_name() -> None:
    class Both(Connected, Served):
        pass

    roster = Roster.plan(Both(division=((0, 3), (1, 2))), NAMES, 2, layout())
    assert len(roster.nodes) == len(roster.by_name) == 4 + 2 + 2
    assert all(roster.by_name[node.name] is node for node in roster.nodes)
    assert {node.role for node in roster.nodes} == {"worker", "server", "communicator"}


def test_a_communicator_is_where_the_first_of_its_workers_is() -> None:
    sites = dict(zip(NAMES, "aabb", strict=True)) | {"server-1": "c"}
    assert [node.site for node in Roster.plan(Served(), NAMES, 2, layout(), sites).servers] == ["", "c"]
    roster = Roster.plan(Connected(division=((0, 2), (1,), (3,))), NAMES, 0, layout(), sites)
    assert [worker.site for worker in roster.workers] == ["a", "a", "b", "b"]
    assert [node.site for node in roster.communicators] == ["a", "a", "b"]


def test_two_processes_make_the_same_list() -> None:
    one, other = (Roster.plan(Connected(division=((2, 0), (1, 3))), NAMES, 0, layout()) for _ in range(2))
    assert one.names() == other.names()
    assert [(n.role, n.index, n.name, n.shard) for n in one.nodes] == [
        (n.role, n.index, n.name, n.shard) for n in other.nodes
    ]
