"""How Grouping-SGD divides its workers: where it cuts, and which numbers groups get."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.algorithms.grouping import Divider, GroupingSgd, cluster
from ownpace.core.blocks.group_barrier import Gathered
from ownpace.core.contract.values import Address, Contribution, Gradient, Shard

WHOLE = Shard(0, 0, 1)


@pytest.mark.parametrize("min_gap", [0.1, 0.25, 1.0])
def test_groups_just_beyond_the_gap_are_separated_and_just_within_it_are_not(min_gap: float) -> None:
    beyond, within = 1 + 1.01 * min_gap, 1 + 0.99 * min_gap
    assert cluster([100 * beyond, 100.0], max_groups=4, min_gap=min_gap) == ((0,), (1,))
    assert cluster([100 * within, 100.0], max_groups=4, min_gap=min_gap) == ((0, 1),)


class Fleet:
    """Workers that push in the groups that they were told, and a divider that watches."""

    def __init__(self, num_workers: int, regroup_every: int = 1) -> None:
        self.workers = [Address("worker", rank, f"worker-{rank}", WHOLE) for rank in range(num_workers)]
        self.divider = Divider(GroupingSgd(prerun=1, regroup_every=regroup_every), num_workers)
        self.group = dict(enumerate(range(num_workers)))
        self.members = {number: {number} for number in range(num_workers)}
        """Of every group number that was ever in use: who has belonged to it."""

    def push(self, number: int, paces: list[float]) -> None:
        """All members of a group push, and hear of their new places."""
        ranks = sorted(rank for rank, group in self.group.items() if group == number)
        parts = tuple(Contribution(10, 10 / paces[rank]) for rank in ranks)
        total = Gradient(torch.zeros(1), 10 * len(ranks), (0,), contributions=parts)
        places = self.divider.look(Gathered(number, tuple(self.workers[rank] for rank in ranks), total))
        assert places.keys() <= set(ranks)
        for rank, place in places.items():
            self.group[rank] = int(place["group"])
            self.members.setdefault(int(place["group"]), set()).add(rank)

    def push_all(self, paces: list[float]) -> None:
        for number in sorted(set(self.group.values())):
            self.push(number, paces)

    def division(self) -> set[frozenset[int]]:
        return {frozenset(r for r, g in self.group.items() if g == number) for number in self.group.values()}


fleets_of_paces = st.lists(st.lists(st.sampled_from([100.0, 400.0]), min_size=4, max_size=4), min_size=1, max_size=4)


@given(fleets_of_paces)
def test_the_number_of_a_group_is_never_given_to_another(changes: list[list[float]]) -> None:
    """While some workers have not heard of a division, old groups and new ones push side by side.

    With a number for two groups, a server would gather them together.
    """
    fleet = Fleet(4)
    seen: dict[int, frozenset[int]] = {number: frozenset([number]) for number in range(4)}
    for paces in changes:
        for _ in range(20):  # until smoothed paces have followed
            fleet.push_all(paces)
        for number in set(fleet.group.values()):
            members = frozenset(rank for rank, group in fleet.group.items() if group == number)
            assert seen.setdefault(number, members) == members
        fast = frozenset(rank for rank, pace in enumerate(paces) if pace == 400.0)
        assert fleet.division() == {fast, frozenset(range(4)) - fast} - {frozenset()}
    assert all(fleet.members[number] == members for number, members in seen.items())


def test_one_unlucky_batch_changes_no_group() -> None:
    fleet = Fleet(4)
    for _ in range(3):
        fleet.push_all([400.0, 400.0, 100.0, 100.0])
    fleet.push_all([250.0, 400.0, 100.0, 100.0])
    for _ in range(3):
        fleet.push_all([400.0, 400.0, 100.0, 100.0])
        assert fleet.division() == {frozenset({0, 1}), frozenset({2, 3})}


def test_it_looks_again_so_many_updates_after_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, number = Fleet(2, regroup_every=40), 0
    looks: list[int] = []
    monkeypatch.setattr(fleet.divider, "_divide", lambda: looks.append(number))
    for number in range(1, 201):
        fleet.push(number % 2, [400.0, 100.0])
    assert looks == [2, 42, 82, 122, 162]  # the first, once both have pushed
