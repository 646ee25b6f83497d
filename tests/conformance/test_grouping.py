"""Grouping-SGD: against a plain statement of it, and everything that must hold of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.plain_server import (
    AWKWARD,
    ServerLoop,
    Setting,
    assert_same,
    drawn_settings,
    engine,
    updates,
)
from torch import Tensor

from ownpace import make_algorithm
from ownpace.algorithms.grouping import cluster
from ownpace.core.contract.events import Compute, Event, Transfer
from ownpace.core.learning.sampling import Shards
from ownpace.engines.job import Job
from ownpace.engines.virtual.run import VirtualRun
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine, Slowdown, paces
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import simulate

Groups = Sequence[Sequence[int]]
INSTANT = Network(bandwidth_bytes_per_s=1e12, latency_s=0.0)
"""Links on which nothing takes time, to speak of."""


# A plain statement of the paper ------------------------------------------------------------------------------------


class Grouping(ServerLoop):
    """A server that waits for all workers of a group, and for nobody else."""

    farewell_bytes = 16

    def __init__(self, setting: Setting, groups: Groups, power: float, momentum: str) -> None:
        super().__init__(setting)
        self.groups = groups
        self.power = power
        self.momentum = momentum
        self.pushed: set[int] = set()
        self.num_updates = 0  # U
        self.last_update = [0 for _ in groups]  # L_g

    def arrived(self, now: float, rank: int) -> None:
        self.pushed.add(rank)
        number, group = next((number, group) for number, group in enumerate(self.groups) if rank in group)
        if not self.pushed.issuperset(group):
            return
        y = max(1, self.num_updates - self.last_update[number] + 1)
        samples = len(group) * self.setting.batch_size
        total = torch.zeros_like(self.weights)
        for member in group:
            total += self.sums[member]
        memory = number if self.momentum == "group" else 0
        self.update(now, total / samples / y**self.power, samples, staleness=y - 1, memory=memory)
        self.num_updates += 1
        self.last_update[number] = self.num_updates
        for member in sorted(group):
            self.pushed.remove(member)
            self.answer(now, member)


def by_hand(groups: Groups) -> str:
    """Groups as the algorithm's parameter has them: 0,1/2."""
    return "/".join(",".join(map(str, group)) for group in groups)


def as_sets(groups: Groups) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}


@st.composite
def drawn_groups(draw: st.DrawFn, num_workers: int) -> list[list[int]]:
    """Any division of the workers, in any order."""
    ranks = draw(st.permutations(range(num_workers)))
    cuts = draw(st.sets(st.integers(1, num_workers - 1))) if num_workers > 1 else set()
    ends = [0, *sorted(cuts), num_workers]
    return [ranks[a:b] for a, b in itertools.pairwise(ends)]


@settings(max_examples=40)
@given(st.data(), drawn_settings(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["shared", "group"]))
def test_is_what_the_paper_says(data: st.DataObject, setting: Setting, power: float, momentum: str) -> None:
    groups = data.draw(drawn_groups(setting.num_workers))
    parameters = {"groups": by_hand(groups), "staleness_power": power, "momentum": momentum}
    outcome, events = engine(setting, "grouping", parameters)
    assert_same(outcome, events, Grouping(setting, groups, power, momentum).run())


def test_momentum_of_its_own_is_another_algorithm() -> None:
    setting = Setting(paces=(1001.0, 997.0, 503.0), momentum=0.9, lr=0.03)
    ends = []
    for momentum in ("shared", "group"):
        parameters = {"groups": "0,1/2", "momentum": momentum}
        outcome, events = engine(setting, "grouping", parameters)
        assert_same(outcome, events, Grouping(setting, [[0, 1], [2]], 1.0, momentum).run())
        ends.append(outcome.model["at"])
    assert (ends[0] - ends[1]).abs().max() > 0.01


# Special cases -----------------------------------------------------------------------------------------------------

jittery_fleets = st.lists(st.integers(200, 5000), min_size=1, max_size=5).map(
    lambda whole: paces(*(pace + extra for pace, extra in zip(whole, AWKWARD, strict=False)), jitter=0.3)
)
jobs = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 12),
        "samples": st.integers(1, 300),
        "seed": st.integers(0, 1000),
        "lr": st.sampled_from([0.03, 0.1]),
    }
)


@settings(max_examples=20)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 1.0]))
def test_one_group_is_sync(
    fleet: Fleet, job: dict[str, int], momentum: float, weight_decay: float, power: float
) -> None:
    job = {**job, "momentum": momentum, "weight_decay": weight_decay}
    everybody = by_hand([range(len(fleet.workers))])
    grouped, events = simulate(
        make_algorithm("grouping", {"groups": everybody, "staleness_power": power}), fleet, **job
    )
    sync, sync_events = simulate(make_algorithm("sync"), fleet, **job)
    assert torch.equal(grouped.model["at"], sync.model["at"])
    assert [(update.samples, update.staleness) for update in updates(events)] == [
        (update.samples, update.staleness) for update in updates(sync_events)
    ]


def singletons(fleet: Fleet) -> str:
    return by_hand([[rank] for rank in range(len(fleet.workers))])


@settings(max_examples=20)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]), st.sampled_from(["shared", "group"]))
def test_one_worker_per_group_is_async_without_weights(
    fleet: Fleet, job: dict[str, int], momentum: float, memory: str
) -> None:
    job = {**job, "momentum": 0.0 if memory == "group" else momentum, "weight_decay": 0.01}
    parameters = {"groups": singletons(fleet), "staleness_power": 0, "momentum": memory}
    grouped, events = simulate(make_algorithm("grouping", parameters), fleet, **job)
    async_, async_events = simulate(make_algorithm("async"), fleet, **job)
    assert torch.equal(grouped.model["at"], async_.model["at"])
    num = async_events[-1].sums.updates  # later, workers that say goodbye take up the server's link
    assert updates(events)[:num] == updates(async_events)[:num]


@settings(max_examples=20)
@given(jittery_fleets, jobs)
def test_one_worker_per_group_is_staleness_aware_with_weights(fleet: Fleet, job: dict[str, int]) -> None:
    grouped, events = simulate(make_algorithm("grouping", {"groups": singletons(fleet)}), fleet, **job)
    aware, aware_events = simulate(make_algorithm("staleness-aware"), fleet, **job)
    torch.testing.assert_close(grouped.model["at"], aware.model["at"], rtol=1e-4, atol=1e-6)
    num = aware_events[-1].sums.updates
    assert updates(events)[:num] == updates(aware_events)[:num]


# Staleness ---------------------------------------------------------------------------------------------------------


def makers(events: list[Event], groups: Groups) -> list[int]:
    """Which group made each update, of one server: the one whose last push came at that moment."""
    senders = {e.until: e.who[0] for e in events if isinstance(e, Transfer) and e.who[1] == "server-0"}
    number_of = {f"worker-{rank}": number for number, group in enumerate(groups) for rank in group}
    return [number_of[senders[update.t]] for update in updates(events)]


def test_the_order_a_a_b_a_b_gives_1_1_3_2_2() -> None:
    # A takes 1 s for a batch. B takes 0.7 s, but ten times as long until 2 s: it is done at 2.5 s and at 3.2 s.
    slow = Slowdown(from_s=0, until_s=2, factor=10)
    fleet = Fleet(
        machine=(Machine(samples_per_s=8, count=2), Machine(samples_per_s=8 / 0.7, slowdown=(slow,))),
        network=INSTANT,
    )
    groups = [[0, 1], [2]]
    _, events = simulate(make_algorithm("grouping", {"groups": by_hand(groups)}), fleet, samples=1000)
    assert makers(events, groups)[:5] == [0, 0, 1, 0, 1]
    assert [update.t for update in updates(events)[:5]] == pytest.approx([1, 2, 2.5, 3, 3.2])
    assert [1 + update.staleness for update in updates(events)[:5]] == [1, 1, 3, 2, 2]


@settings(max_examples=30)
@given(st.data(), jittery_fleets, jobs, st.sampled_from(["shared", "group"]))
def test_y_counts_the_others_updates_since_ones_own_last(
    data: st.DataObject, fleet: Fleet, job: dict[str, int], momentum: str
) -> None:
    groups = data.draw(drawn_groups(len(fleet.workers)))
    algorithm = make_algorithm("grouping", {"groups": by_hand(groups), "momentum": momentum})
    _, events = simulate(algorithm, fleet, timing_only=True, **job)
    since = [1 for _ in groups]
    for update, maker in zip(updates(events), makers(events, groups), strict=True):
        assert 1 + update.staleness == since[maker]
        since = [count + 1 for count in since]
        since[maker] = 1


@settings(max_examples=20)
@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_equal_groups_take_turns(data: st.DataObject, num_groups: int, size: int) -> None:
    """Y = G from the second round on; in the first, 1, 2 … G."""
    ranks = data.draw(st.permutations(range(num_groups * size)))
    groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
    fleet = Fleet(machine=(Machine(samples_per_s=1024, count=len(ranks)),))
    algorithm = make_algorithm("grouping", {"groups": by_hand(groups)})
    _, events = simulate(algorithm, fleet, samples=8 * len(ranks) * 5, timing_only=True)
    ys = [1 + update.staleness for update in updates(events)]
    assert ys[: 5 * num_groups] == [*range(1, num_groups + 1), *[num_groups] * (4 * num_groups)]


@settings(max_examples=12)
@given(rates=st.lists(st.integers(10, 80), min_size=2, max_size=4), sizes=st.lists(st.integers(1, 3), min_size=4))
@example(rates=[80, 10], sizes=[1, 1, 1, 1])
def test_at_constant_rates_the_mean_y_is_the_sum_of_rates_over_ones_own(rates: list[int], sizes: list[int]) -> None:
    rates_per_s = [rate + extra for rate, extra in zip(rates, AWKWARD, strict=False)]
    machines, groups, first = [], [], 0
    for rate, size in zip(rates_per_s, sizes, strict=False):
        # The slowest sets the group's pace.
        machines += [Machine(samples_per_s=8 * rate * (1 + i)) for i in range(size)]
        groups.append(list(range(first, first + size)))
        first += size
    fleet = Fleet(machine=tuple(machines), network=INSTANT)
    algorithm = make_algorithm("grouping", {"groups": by_hand(groups)})
    _, events = simulate(algorithm, fleet, samples=None, seconds=5.0, timing_only=True)
    ys = defaultdict(list)
    for update, maker in zip(updates(events), makers(events, groups), strict=True):
        ys[maker].append(1 + update.staleness)
    for number, rate in enumerate(rates_per_s):
        assert len(ys[number]) == pytest.approx(5 * rate, abs=1.5)
        assert sum(ys[number]) / len(ys[number]) == pytest.approx(sum(rates_per_s) / rate, rel=0.03)


# Who sees what, who waits for whom ---------------------------------------------------------------------------------


def versions(events: list[Event]) -> dict[int, list[int]]:
    """Of each worker: the version at which it computed each micro-batch."""
    seen = defaultdict(list)
    for event in events:
        if isinstance(event, Compute):
            seen[int(event.who.removeprefix("worker-"))].append(event.version)
    return seen


@settings(max_examples=20)
@given(st.data(), jittery_fleets, jobs, st.integers(1, 3))
def test_a_group_sees_one_snapshot_in_each_iteration(
    data: st.DataObject, fleet: Fleet, job: dict[str, int], parts: int
) -> None:
    """That which its own last update made, whatever the size of micro-batches."""
    groups = data.draw(drawn_groups(len(fleet.workers)))
    micro_batch = math.ceil(job["batch_size"] / parts)
    parts = math.ceil(job["batch_size"] / micro_batch)
    algorithm = make_algorithm("grouping", {"groups": by_hand(groups)})
    _, events = simulate(algorithm, fleet, micro_batch=micro_batch, timing_only=True, **job)
    made = makers(events, groups)
    for number, group in enumerate(groups):
        snapshots = [0, *(version for version, maker in enumerate(made, 1) if maker == number)]
        for rank in group:
            seen = versions(events)[rank]
            assert seen == [version for version in snapshots[:-1] for _ in range(parts)]


@pytest.mark.parametrize("stall", ["pause", "slowdown"])
def test_a_stalled_group_blocks_no_other(stall: str) -> None:
    slow = (Slowdown(from_s=1, until_s=3, factor=1e6),) if stall == "slowdown" else ()
    pause = (PlannedFault(worker="worker-0", kind="pause", at_s=1, back_at_s=3),) if stall == "pause" else ()
    fleet = Fleet(
        machine=(Machine(samples_per_s=1000, slowdown=slow), Machine(samples_per_s=1000), Machine(samples_per_s=900)),
        fault=pause,
        network=INSTANT,
    )
    groups = [[0, 1], [2]]
    _, events = simulate(make_algorithm("grouping", {"groups": by_hand(groups)}), fleet, samples=None, seconds=4.0)
    made = list(zip(updates(events), makers(events, groups), strict=True))
    stalled = [update.t for update, maker in made if maker == 0]
    other = [update.t for update, maker in made if maker == 1]
    assert [b - a for a, b in itertools.pairwise(other)] == pytest.approx([8 / 900] * (len(other) - 1))
    assert other[-1] > 3.9
    assert max(b - a for a, b in itertools.pairwise(stalled)) == pytest.approx(2, abs=0.02)  # it did stall
    assert max(update.staleness for update, maker in made if maker == 0) == pytest.approx(2 * 900 / 8, abs=2)


# Servers -----------------------------------------------------------------------------------------------------------


def on_servers(*bandwidths: float) -> tuple[list[Event], dict[str, Tensor]]:
    """A group at 1 s a batch and one at 2.37 s, on servers with these links, each worker with its own data.

    Two updates are at least 0.1 s apart, more than all transfers take together: their order is certain.
    """
    fleet = Fleet(
        machine=(Machine(samples_per_s=8, count=2), Machine(samples_per_s=8 / 2.37)),
        network=Network(bandwidth_bytes_per_s=1e9, latency_s=1e-5),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=bandwidth) for bandwidth in bandwidths),
    )
    algorithm = make_algorithm("grouping", {"groups": "0,1/2"})
    outcome, events = simulate(
        algorithm, fleet, task=Digits(), samples=170, momentum=0.5, weight_decay=0.01, sampling="shards"
    )
    assert outcome.error is None
    return events, outcome.model


@pytest.mark.parametrize("bandwidths", [(1e7,), (1e8, 1e8), (1e7, 1e9), (1e9, 1e7), (1e9, 1e8, 1e7), (1e7,) * 4])
def test_servers_change_the_timing_only(bandwidths: tuple[float, ...]) -> None:
    reference_events, reference = on_servers(1e9)
    events, model = on_servers(*bandwidths)
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, reference[name], rtol=0, atol=1e-6)
    expected = updates(reference_events)
    for server in range(len(bandwidths)):
        made = [update for update in updates(events) if update.who == f"server-{server}"]
        assert [(update.samples, update.staleness) for update in made] == [
            (update.samples, update.staleness) for update in expected
        ]
        assert made[-1].t != expected[-1].t


def test_fast_servers_own_the_low_layers() -> None:
    fast_first, slow_first = on_servers(1e9, 1e8, 1e7), on_servers(1e7, 1e8, 1e9)
    assert fast_first[0] == slow_first[0]
    pushes = [e for e in slow_first[0] if isinstance(e, Transfer) and e.who[0] == "worker-0"][:3]
    assert [push.who[1] for push in pushes] == ["server-0", "server-1", "server-2"]  # low layers first on the wire
    # A push takes as long as the slower of the two links needs: that shows which server's it was.
    sizes = [push.nbytes for push in pushes]
    bandwidths = [push.nbytes / (push.until - push.t - 1e-5) for push in pushes]
    assert sizes[0] > sizes[1] > 0
    assert bandwidths[0] > 10 * bandwidths[2]


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
    parameters = {"regroup_every": regroup_every, "prerun": prerun, "min_gap": 0.1}
    if hand:
        parameters["groups"] = by_hand([range(len(fleet.workers))])
    algorithm = make_algorithm("grouping", parameters)
    outcome, events = simulate(algorithm, fleet, task=Digits(), samples=800, seed=seed, timing_only=True)
    assert outcome.error is None
    computed = sum(event.samples for event in events if isinstance(event, Compute))
    applied = Counter()
    for update in updates(events):
        applied[update.who] += update.samples
        assert update.staleness >= 0
    assert applied == {f"server-{number}": computed for number in range(len(fleet.server))}


# Data --------------------------------------------------------------------------------------------------------------


class Noting(Shards):
    """Shards that note what each worker has drawn."""

    def __init__(self, size: int, num_workers: int, seed: int) -> None:
        super().__init__(size, num_workers, seed)
        self.drawn: list[set[int]] = [set() for _ in range(num_workers)]

    def draw(self, rank: int, samples: int) -> Tensor:
        indices = super().draw(rank, samples)
        self.drawn[rank].update(indices.tolist())
        return indices

    def assign(self, rank: int, start: float, stop: float) -> None:
        super().assign(rank, start, stop)
        self.drawn[rank].clear()


def drawn_by_each(samples_per_s: Sequence[float], parameters: dict[str, object]) -> list[set[int]]:
    """The samples that each worker draws, in the end, of 400."""
    fleet = paces(*samples_per_s, jitter=0.0)
    job = Job(
        algorithm=make_algorithm("grouping", {**parameters, "data": "shares"}),
        task=Quadratic(num_samples=400),
        fleet=fleet,
        seconds=400 / min(samples_per_s),
        batch_size=8,
        sampling="shards",
    )
    run = VirtualRun(job, lambda event: None, None)
    run.simulation.sampler = sampler = Noting(400, len(samples_per_s), seed=0)
    assert run.run().error is None
    return sampler.drawn


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
