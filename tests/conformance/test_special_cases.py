"""Each baseline's special cases."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace import make_algorithm
from ownpace.core.blocks.paces import divide
from ownpace.core.contract.events import Compute, Update
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Contribution, Gradient
from ownpace.fleet import Fleet, Machine, ServerMachine, Slowdown, paces
from ownpace.report import summarize
from ownpace.tasks import Digits
from ownpace.testing import simulate


def times_and_values(name, fleet, parameters=None, **job):
    outcome, events = simulate(make_algorithm(name, parameters), fleet, **job)
    return [event.t for event in events if isinstance(event, Update)], outcome.model["at"]


def test_sync_is_one_machine_with_the_union_batch():
    _, four = times_and_values("sync", paces(4000, 2000, 1000, 1000, jitter=0.0), momentum=0.9, lr=0.03)
    _, one = times_and_values("sync", paces(1000, jitter=0.0), momentum=0.9, lr=0.03, batch_size=32)
    torch.testing.assert_close(four, one, rtol=1e-4, atol=1e-6)


def test_sync_does_not_care_how_a_batch_is_cut():
    fleet = paces(2000, 1000, jitter=0.0)
    _, whole = times_and_values("sync", fleet)
    # A cut batch draws its samples in another order among the workers, but the union is the same.
    _, cut = times_and_values("sync", fleet, micro_batch=8)
    torch.testing.assert_close(whole, cut, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_servers", [1, 3])
def test_sync_through_servers_learns_what_it_learns_through_a_ring(num_servers):
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.3)
    served = replace(fleet, server=(ServerMachine(),) * num_servers)
    # By shards: who takes which samples from the queue is a matter of time.
    job: dict[str, Any] = {"momentum": 0.9, "lr": 0.03, "sampling": "shards", "task": Digits(), "samples": 600}
    (ring, _), (servers, events) = (
        simulate(make_algorithm("sync", {"via": via}), served, **job) for via in ("ring", "servers")
    )
    assert {event.who for event in events if isinstance(event, Update)} == {f"server-{i}" for i in range(num_servers)}
    for name, values in ring.model.items():
        torch.testing.assert_close(servers.model[name], values, rtol=1e-4, atol=1e-6)
    # Waiting for all of them is what backup workers without any backup do.
    _, without = simulate(make_algorithm("backup", {"backups": 0}), served, **job)
    made, theirs = ([event for event in of if isinstance(event, Update)] for of in (events, without))
    assert made == theirs


def test_stale_without_slack_is_sync_with_the_sum_in_place_of_the_mean():
    """s = 0: a clock's gradients are all taken at the same parameters; without momentum, N steps of η are one of Nη."""
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0)
    _, events = simulate(make_algorithm("stale", {"staleness": 0}), fleet)
    assert [e.staleness for e in events if isinstance(e, Update)][:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    _, stale = times_and_values("stale", fleet, {"staleness": 0}, lr=0.02)
    _, sync = times_and_values("sync", fleet, lr=0.08)
    torch.testing.assert_close(stale, sync, rtol=1e-3, atol=1e-5)


def test_stale_with_endless_slack_is_async():
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.3)
    times, values = times_and_values("stale", fleet, {"staleness": 10**9})
    async_times, async_values = times_and_values("async", fleet)
    assert times == async_times
    assert torch.equal(values, async_values)


@settings(max_examples=30, deadline=None)
@given(bound=st.integers(0, 4), speeds=st.lists(st.floats(200, 4000), min_size=2, max_size=5))
def test_stale_never_runs_too_far_ahead(bound, speeds):
    """A worker starts clock c + 1 only if c − min ≤ s."""
    _, events = simulate(make_algorithm("stale", {"staleness": bound}), paces(*speeds, jitter=0.2), samples=600)
    started = sorted((e.t, e.who) for e in events if isinstance(e, Compute))
    finished = sorted((e.until, e.who) for e in events if isinstance(e, Compute))
    clocks = {who: 0 for _, who in started}
    for time, who in started:
        for until, other in list(finished):
            if until > time + 1e-12:
                break
            clocks[other] += 1
            finished.remove((until, other))
        assert clocks[who] - min(clocks.values()) <= bound


def test_balanced_among_equals_is_sync():
    fleet = paces(1000, 1000, 1000, jitter=0.0)
    times, values = times_and_values("balanced", fleet, momentum=0.9, lr=0.03)
    sync_times, sync_values = times_and_values("sync", fleet, momentum=0.9, lr=0.03)
    assert times == pytest.approx(sync_times)
    assert torch.equal(values, sync_values)


def test_balanced_takes_equally_long_everywhere():
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0)
    _, events = simulate(make_algorithm("balanced"), fleet, batch_size=100, samples=16_000)
    last = [e for e in events if isinstance(e, Compute)][-8:]
    sizes: dict[str, int] = {}
    for event in [e for e in events if isinstance(e, Compute) and e.version == last[-1].version]:
        sizes[event.who] = sizes.get(event.who, 0) + event.samples
    assert sizes == {"worker-0": 200, "worker-1": 100, "worker-2": 50, "worker-3": 50}
    assert summarize(events).share_of_limit > 0.9
    assert summarize(events).staleness.max == 0


class TwoGpus:
    """All that `balanced` asks for, of two GPUs at paces 3:1 that need five seconds for kernels of each new size."""

    rank, workers, batch_size, micro_batch = 0, (0, 1), 100, 1000

    def __init__(self, updates: int) -> None:
        self._left = updates
        self._known: set[int] = set()
        self.sizes: list[int] = []

    @property
    def training(self) -> bool:
        return self._left > 0

    async def step_by_layer(self, total: Coroutine[None, None, Gradient]) -> Gradient:
        self._left -= 1
        return await total

    def gradient(self, samples: int, at: object = None, plus: Gradient | None = None) -> int:
        self.sizes.append(samples)
        return samples

    async def all_reduce(self, samples: int) -> Gradient:
        contributions = (self._contribution(samples, 3000), self._contribution(200 - samples, 1000))
        return Gradient(torch.zeros(1), 200, (0, 0), contributions=contributions)

    def _contribution(self, samples: int, pace: float) -> Contribution:
        seconds = samples / pace + (0.0 if samples in self._known else 5.0)
        self._known.add(samples)
        return Contribution(samples, seconds)


def test_balanced_comes_to_rest_where_every_new_size_costs_time_once():
    gpus = TwoGpus(updates=30)
    with pytest.raises(StopIteration):
        make_algorithm("balanced").worker(cast(Worker, gpus)).send(None)
    assert gpus.sizes[-25:] == [150] * 25


def test_balanced_follows_a_change_of_pace():
    slow = Slowdown(from_s=2, until_s=100, factor=4)
    fleet = Fleet(machine=(Machine(samples_per_s=1000), Machine(samples_per_s=1000, slowdown=(slow,))))
    _, events = simulate(make_algorithm("balanced"), fleet, batch_size=50, samples=12_000)
    computed = [e for e in events if isinstance(e, Compute)]

    def share(low, high):
        window = [e for e in computed if low <= e.t < high]
        return sum(e.samples for e in window if e.who == "worker-1") / sum(e.samples for e in window)

    assert share(1, 2) == pytest.approx(0.5, abs=0.02)
    assert share(6, 8) == pytest.approx(0.2, abs=0.02)


@given(total=st.integers(1, 5000), shares=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_divide_is_exact_and_fair(total, shares):
    sizes = divide(total, shares)
    assert sum(sizes) == total
    if total >= len(shares):
        assert min(sizes) >= 1
    exact = [total * share / sum(shares) for share in shares]
    given_one = sum(1 for size, wish in zip(sizes, exact, strict=True) if size == 1 and wish < 1)
    assert all(abs(size - wish) <= 1 + given_one for size, wish in zip(sizes, exact, strict=True))
