"""Grouping-SGD in given groups: against a plain statement of it, staleness, who waits for whom, servers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.groups import INSTANT, Groups, by_hand
from tests.conformance.plain import AWKWARD, Setting, assert_same, drawn_settings, engine, jittery_fleets, jobs, updates
from tests.conformance.plain.server import ServerLoop
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event, Transfer
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine, Slowdown
from ownpace.tasks import Digits
from ownpace.testing import simulate

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


@settings(max_examples=20)
@given(jittery_fleets, jobs, st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 1.0]))
def test_one_group_is_sync(
    fleet: Fleet, job: dict[str, float], momentum: float, weight_decay: float, power: float
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
    fleet: Fleet, job: dict[str, float], momentum: float, memory: str
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
def test_one_worker_per_group_is_staleness_aware_with_weights(fleet: Fleet, job: dict[str, float]) -> None:
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
    data: st.DataObject, fleet: Fleet, job: dict[str, float], momentum: str
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
    data: st.DataObject, fleet: Fleet, job: dict[str, float], parts: int
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
