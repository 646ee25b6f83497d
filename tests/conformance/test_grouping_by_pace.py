"""Grouping-SGD in groups by measured pace: what is found, how it changes, and who draws which data."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.groups import INSTANT, as_sets, by_hand
from tests.conformance.plain import updates
from torch import Tensor

from ownpace import make_algorithm
from ownpace.algorithms.grouping import cluster
from ownpace.core.contract.events import Compute, Event
from ownpace.core.learning import sampling
from ownpace.core.learning.sampling import Shards
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, Slowdown, paces
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import simulate

# Groups by measured pace -------------------------------------------------------------------------------------------


@st.composite
def planted(draw: st.DrawFn, *, most_groups: int = 4) -> tuple[list[float], list[list[int]]]:
    """Paces, at least half as much again from group to group and within 2 % of each other inside, in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=most_groups))
    ratios = draw(st.lists(st.floats(1.5, 6), min_size=len(sizes), max_size=len(sizes)))
    places = draw(st.permutations(range(sum(sizes))))
    samples_per_s = [0.0] * sum(sizes)
    groups, pace, first = [], 100.0, 0
    for size, ratio in zip(sizes, ratios, strict=True):
        groups.append(sorted(places[first : first + size]))
        for rank in groups[-1]:
            samples_per_s[rank] = pace * draw(st.floats(0.99, 1.01))
        first += size
        pace *= ratio * 1.01 / 0.99  # so much faster than the fastest of the group before
    return samples_per_s, groups[::-1]


@settings(max_examples=200)
@given(planted(), st.integers(4, 8))
def test_planted_groups_are_found_in_any_order_of_workers(
    plan: tuple[list[float], list[list[int]]], max_groups: int
) -> None:
    samples_per_s, groups = plan
    assert cluster(samples_per_s, max_groups, 0.25) == tuple(map(tuple, groups))  # the fastest first


@pytest.mark.parametrize("seed", range(5))
def test_the_criterion_alone_degenerates(seed: int) -> None:
    """Twelve workers of three speeds with 1 % of noise: three groups; eleven by the criterion alone."""
    noise = 1 + 0.01 * torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    speeds = torch.tensor([4000.0, 2000.0, 1000.0]).repeat(4) * noise
    threes = tuple(tuple(range(first, 12, 3)) for first in range(3))
    assert cluster(speeds.tolist(), 4, 0.25) == threes
    assert cluster(speeds.tolist(), 11, 0.25) == threes
    assert len(cluster(speeds.tolist(), 11, 0.0)) == 11


def test_fewer_groups_win_where_more_gain_too_little() -> None:
    """Two pairs far apart, 1.35 times inside. Between over within, each per degree of freedom: two beat three."""
    samples_per_s = [1000, 1350, 4e6, 5.4e6]
    logs = [math.log(pace) for pace in samples_per_s]
    far, near = logs[2] - logs[0], logs[1] - logs[0]
    two = far**2 / (2 * near**2 / 2 / 2)
    three = (far**2 + near**2 / 2) / 2 / (near**2 / 2 / 1)
    assert two > three
    assert cluster(samples_per_s, 3, 0.25) == ((2, 3), (0, 1))


def test_everybody_is_where_the_mean_is_nearest() -> None:
    """The widest gap, from 0 to 1.2, is no good border: 1.2 is nearer to 0 than to the mean of the others."""
    logs = [0, 1.2, 2.2, 3.2, 4.2, 5.2]
    assert cluster([math.exp(log) for log in logs], 2, 0.25) == ((2, 3, 4, 5), (0, 1))


@settings(max_examples=50)
@given(st.lists(st.floats(10, 1e5), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([0.1, 0.25, 1.0]))
def test_groups_are_few_far_apart_and_complete(samples_per_s: list[float], max_groups: int, min_gap: float) -> None:
    groups = cluster(samples_per_s, max_groups, min_gap)
    assert sorted(rank for group in groups for rank in group) == list(range(len(samples_per_s)))
    assert len(groups) <= max_groups
    for faster, slower in itertools.pairwise(groups):
        lowest, highest = min(samples_per_s[r] for r in faster), max(samples_per_s[r] for r in slower)
        assert lowest / highest >= (1 + min_gap) * (1 - 1e-9)


def together(events: list[Event], from_s: float, until_s: float) -> set[frozenset[int]]:
    """Who shared snapshots in that time: an update's parameters go to the group that made it, and to nobody else."""
    users = defaultdict(set)
    for event in events:
        if isinstance(event, Compute) and from_s <= event.t < until_s:
            users[event.version].add(int(event.who.removeprefix("worker-")))
    groups: list[set[int]] = []
    for sharing in users.values():
        touched = [group for group in groups if group & sharing]
        groups = [group for group in groups if not group & sharing] + [sharing.union(*touched)]
    return as_sets(groups)


@settings(max_examples=10)
@given(st.permutations([4000, 4000, 2000, 2000, 1000, 1000]), st.integers(1, 4))
def test_a_run_finds_its_groups(samples_per_s: list[int], prerun: int) -> None:
    fleet = Fleet(machine=tuple(Machine(samples_per_s=pace, jitter=0.02) for pace in samples_per_s), network=INSTANT)
    algorithm = make_algorithm("grouping", {"prerun": prerun})
    _, events = simulate(algorithm, fleet, samples=None, seconds=0.4, timing_only=True)
    of_pace = [[rank for rank in range(6) if samples_per_s[rank] == pace] for pace in (4000, 2000, 1000)]
    slowest = [e.until for e in events if isinstance(e, Compute) and samples_per_s[int(e.who[-1])] == 1000]
    pre_run_s = sorted(slowest)[2 * prerun - 1]  # both of them have pushed `prerun` batches
    # Everybody is alone until then, and every group is complete once its slowest member has heard of it.
    assert {len(group) for group in together(events, 1e-6, pre_run_s)} == {1}
    assert together(events, pre_run_s + 0.03, math.inf) == as_sets(of_pace)


@pytest.mark.parametrize("regroup_every", [0, 20])
def test_groups_follow_a_change_of_pace(regroup_every: int) -> None:
    slow = Slowdown(from_s=1, until_s=1e6, factor=4)
    fleet = Fleet(
        machine=(
            Machine(samples_per_s=4000, jitter=0.02),
            Machine(samples_per_s=4000, jitter=0.02, slowdown=(slow,)),
            Machine(samples_per_s=1000, jitter=0.02, count=2),
        )
    )
    algorithm = make_algorithm("grouping", {"regroup_every": regroup_every})
    outcome, events = simulate(algorithm, fleet, samples=None, seconds=3.0, timing_only=True)
    assert outcome.error is None
    before, after = as_sets([[0, 1], [2, 3]]), as_sets([[0], [1, 2, 3]])
    assert together(events, 0.5, 1.0) == before
    assert together(events, 2.0, 3.0) == (after if regroup_every else before)


@st.composite
def restless_fleets(draw: st.DrawFn) -> Fleet:
    """Paces that look different at every measurement, and up to four servers of any bandwidth."""
    bandwidths = st.floats(1e5, 1e9)
    machines = st.builds(Machine, samples_per_s=st.floats(100, 5000), jitter=st.sampled_from([0.3, 2.0]))
    return Fleet(
        machine=tuple(draw(st.lists(machines, min_size=1, max_size=6))),
        network=Network(bandwidth_bytes_per_s=draw(bandwidths), latency_s=draw(st.floats(0, 1e-2))),
        server=tuple(
            draw(st.lists(st.builds(ServerMachine, bandwidth_bytes_per_s=bandwidths), min_size=1, max_size=4))
        ),
    )


@settings(max_examples=20)
@given(restless_fleets(), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 100))
def test_regrouping_loses_nobody_and_nothing(
    fleet: Fleet, regroup_every: int, prerun: int, hand: bool, seed: int
) -> None:
    parameters: dict[str, object] = {"regroup_every": regroup_every, "prerun": prerun, "min_gap": 0.1}
    if hand:
        parameters["groups"] = by_hand([range(len(fleet.workers))])
    algorithm = make_algorithm("grouping", parameters)
    outcome, events = simulate(algorithm, fleet, task=Digits(), samples=800, seed=seed, timing_only=True)
    assert outcome.error is None
    computed = sum(event.samples for event in events if isinstance(event, Compute))
    applied: Counter[str] = Counter()
    for update in updates(events):
        applied[update.who] += update.samples
        assert update.staleness >= 0
    assert applied == {f"server-{number}": computed for number in range(len(fleet.server))}


# Data --------------------------------------------------------------------------------------------------------------


class Noting(Shards):
    """Shards that note what each worker has drawn since its share was assigned."""

    made: ClassVar[list[Noting]] = []

    def __init__(self, size: int, num_workers: int, seed: int, *, visits: bool = False) -> None:
        super().__init__(size, num_workers, seed, visits=visits)
        self.drawn: list[set[int]] = [set() for _ in range(num_workers)]
        self.made.append(self)

    def draw(self, rank: int, samples: int) -> Tensor:
        indices = super().draw(rank, samples)
        self.drawn[rank].update(indices.tolist())
        return indices

    def assign(self, rank: int, start: float, stop: float) -> None:
        super().assign(rank, start, stop)
        self.drawn[rank].clear()


def drawn_by_each(samples_per_s: Sequence[float], parameters: dict[str, object]) -> list[set[int]]:
    """The samples that each worker draws, in the end, of 400."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "Shards", Noting)
        outcome, _ = simulate(
            make_algorithm("grouping", {**parameters, "data": "shares"}),
            paces(*samples_per_s, jitter=0.0),
            task=Quadratic(num_samples=400),
            seconds=400 / min(samples_per_s),
            sampling="shards",
        )
    assert outcome.error is None
    return Noting.made.pop().drawn


def assert_shares(drawn: list[set[int]], expected: Sequence[float]) -> None:
    """Everything is somebody's, nothing is two workers', and each has its share."""
    assert sum(map(len, drawn)) == len(set().union(*drawn)) == 400
    assert [len(share) for share in drawn] == pytest.approx([400 * share for share in expected], abs=1)


@settings(max_examples=5)
@given(st.permutations([4000, 4200, 2000, 2050, 1000]))
def test_a_workers_share_is_that_of_the_slowest_of_its_group(samples_per_s: list[int]) -> None:
    slowest = [{4200: 4000, 2050: 2000}.get(pace, pace) for pace in samples_per_s]
    drawn = drawn_by_each(samples_per_s, {})
    assert_shares(drawn, [pace / sum(slowest) for pace in slowest])


def test_shares_follow_the_paces_where_everybody_stays_alone() -> None:
    assert_shares(drawn_by_each([4000, 2000, 1000], {}), [4 / 7, 2 / 7, 1 / 7])


def test_shares_follow_the_paces_where_groups_are_named_by_hand() -> None:
    assert_shares(drawn_by_each([2000, 2000, 1000], {"groups": "0,1/2"}), [2 / 5, 2 / 5, 1 / 5])


def test_shares_among_equals_are_equal() -> None:
    assert_shares(drawn_by_each([1000, 1000, 1000, 1000], {}), [1 / 4] * 4)
