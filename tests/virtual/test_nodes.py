"""What nodes answer in virtual time: versions, messages, gradients of no samples, batches at one's own pace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ownpace import Algorithm, accumulate, make_algorithm, pull, push
from ownpace.core.contract.events import Compute, Transfer, Update
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, paces
from ownpace.tasks import Digits
from ownpace.testing import simulate


def with_servers(count: int, num_workers: int = 1, **network: Any) -> Fleet:
    return Fleet(
        machine=(Machine(samples_per_s=1000, count=num_workers),),
        server=(ServerMachine(),) * count,
        network=Network(**network),
    )


@dataclass(frozen=True, kw_only=True)
class OneShard(Algorithm):
    """Only the first server hears of gradients; the other shard stays where it was."""

    async def worker(self, me):
        server, other = me.servers
        for version in range(1, 4):
            me.send(server, (await me.gradient()).part(server.shard))
            me.place((await me.receive(server)).parameters)
            assert me.parameters.version == 0  # the oldest of its shards
            assert (await me.gradient()).versions == (version, 0)
            assert (await me.gradient(at=me.parameters)).versions == (version, 0)  # where it is, each shard
        me.send(other, (await me.gradient()).part(other.shard))
        me.place((await me.receive(other)).parameters)
        assert me.parameters.version == 1

    async def server(self, me):
        while True:
            message = await me.receive()
            me.step(message.gradient)
            me.send(message.sender, me.parameters)


def test_a_workers_version_is_that_of_its_oldest_shard():
    outcome, events = simulate(OneShard(), with_servers(2), task=Digits(), batch_size=8)
    assert outcome.error is None
    assert [event.who for event in events if isinstance(event, Update)] == ["server-0"] * 3 + ["server-1"]


@pytest.mark.parametrize("name", ["async", "stale", "dc-async", "staleness-aware", "backup", "grouping", "od"])
def test_low_layers_go_first_on_the_wire(name):
    fleet = with_servers(3, num_workers=2, bandwidth_bytes_per_s=1e6)
    _, events = simulate(make_algorithm(name), fleet, task=Digits(), batch_size=8, samples=160)
    sends = [event for event in events if isinstance(event, Transfer) and event.who[0] == "worker-0"]
    assert len(sends) >= 9
    assert [event.who[1] for event in sends] == [f"server-{i % 3}" for i in range(len(sends))]
    assert all(a.t < b.t for a, b in itertools.pairwise(sends))


@dataclass(frozen=True, kw_only=True)
class Nothing(Algorithm):
    """Every step that there is, with a gradient of no samples; then one with samples."""

    async def worker(self, me):
        before, nothing = me.parameters, me.no_gradient()
        assert torch.equal(nothing.mean, torch.zeros_like(before.values))
        assert torch.equal(me.peek(nothing).values, before.values)
        me.step(nothing)
        me.local_step(nothing)
        me.commit(before.values + 1, nothing)
        assert torch.equal(me.parameters.values, before.values)
        assert me.parameters.version == 0
        me.step(await me.gradient())


def test_a_gradient_of_no_samples_changes_nothing():
    outcome, events = simulate(Nothing(), paces(1000, jitter=0.0), momentum=0.9)
    assert outcome.error is None
    assert [(event.version, event.samples) for event in events if isinstance(event, Update)] == [(1, 8)]


@dataclass(frozen=True, kw_only=True)
class Notes(Algorithm):
    """Numbers by name, alone and with a body."""

    async def worker(self, me):
        push(me, await accumulate(me, me.batch_size), group=3, size=1.5)
        assert await pull(me) == {"stop": 7.0}
        me.send(me.servers.members[0], one=1, two=2)

    async def server(self, me):
        message = await me.receive()
        assert message.notes == {"group": 3, "size": 1.5}
        me.step(message.gradient)
        me.send(message.sender, me.parameters, stop=7.0)
        message = await me.receive()
        assert message.body is None
        assert message.notes == {"one": 1, "two": 2}


def test_numbers_by_name_cost_bytes_only_where_they_travel_alone():
    outcome, events = simulate(Notes(), with_servers(1))
    assert outcome.error is None
    assert [event.nbytes for event in events if isinstance(event, Transfer)] == [40, 40, 16]


def computed(events, name: str) -> list[int]:
    return [event.samples for event in events if isinstance(event, Compute) and event.who == name]


def test_paces_are_learnt_during_the_warm_up_too():
    fleet = paces(4000, 1000, jitter=0.0)
    algorithm = make_algorithm("pace", {"warmup": 6, "micro": "equal-time"})
    _, events = simulate(algorithm, fleet, batch_size=32, samples=1000, lr=0.01)
    slow = computed(events, "worker-1")
    assert slow[0] == 32
    assert set(slow[1:6]) == {8}  # from the second warm-up update on


def test_the_cap_on_an_update_is_divided_by_pace():
    """Sums take so long that each worker computes its part of the cap, and then waits."""
    fleet = paces(3000, 1000, jitter=0.0, network=Network(latency_s=0.05, bandwidth_bytes_per_s=1e9))
    algorithm = make_algorithm("pace", {"max_batch": 64, "micro": "fixed"})
    _, events = simulate(algorithm, fleet, batch_size=8, micro_batch=2, samples=4000, lr=0.01)
    fast, slow = (events[-1].sums.workers[name].samples for name in ("worker-0", "worker-1"))
    assert fast / slow == pytest.approx(3, rel=0.05)
