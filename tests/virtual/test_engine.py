"""The virtual engine: clocks, networks, faults, collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace import Algorithm, make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Compute, Fault, Load, Transfer, Update, Wait, to_line
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.schedule import Schedule
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine, paces
from ownpace.report import summarize
from ownpace.tasks import Digits
from ownpace.testing import simulate

BYTES = 40  # ten parameters


def updates(events):
    return [event for event in events if isinstance(event, Update)]


@given(
    speeds=st.lists(st.floats(10, 1e4), min_size=1, max_size=6),
    bandwidth=st.floats(10, 1e9),
    latency=st.floats(0, 1),
    batch=st.integers(1, 50),
)
def test_sync_takes_the_slowest_and_a_ring(speeds, bandwidth, latency, batch):
    network = Network(bandwidth_bytes_per_s=bandwidth, latency_s=latency)
    n = len(speeds)
    _, events = simulate(
        make_algorithm("sync"), paces(*speeds, jitter=0.0, network=network), batch_size=batch, samples=5 * n * batch
    )
    ring = 2 * (n - 1) / n * BYTES / bandwidth + 2 * (n - 1) * latency
    period = batch / min(speeds) + ring
    assert [event.t for event in updates(events)] == pytest.approx([period * k for k in range(1, 6)], rel=1e-9)


@pytest.mark.parametrize("num_workers", [4, 10])
def test_async_on_a_saturated_server_runs_at_its_links_pace(num_workers):
    """Computing takes no time to speak of, so every gradient costs its bytes on the server's way in."""
    bandwidth = 4000.0
    fleet = Fleet(
        machine=(Machine(samples_per_s=1e7, count=num_workers),),
        network=Network(bandwidth_bytes_per_s=1e6, latency_s=1e-6),
        server=(ServerMachine(bandwidth_bytes_per_s=bandwidth),),
    )
    _, events = simulate(make_algorithm("async"), fleet, batch_size=1, samples=2000, timing_only=True)
    rate = summarize(events).updates / summarize(events).seconds
    assert rate * BYTES == pytest.approx(bandwidth, rel=0.01)


def test_pushes_at_once_queue_for_the_servers_link():
    fleet = Fleet(
        machine=(Machine(samples_per_s=100, count=5),), network=Network(bandwidth_bytes_per_s=400, latency_s=0.0)
    )
    _, events = simulate(make_algorithm("async"), fleet, batch_size=10, samples=50)
    # All compute for 0.1 s, then five pushes of 0.1 s each come in one after the other.
    assert [event.t for event in updates(events)][:5] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])


def test_a_slow_sender_does_not_hold_up_a_fast_server():
    fleet = Fleet(
        machine=(Machine(samples_per_s=100, count=5),),
        network=Network(bandwidth_bytes_per_s=40, latency_s=0.0),
        server=(ServerMachine(bandwidth_bytes_per_s=4e9),),
    )
    _, events = simulate(make_algorithm("async"), fleet, batch_size=10, samples=50)
    assert [event.t for event in updates(events)][:5] == pytest.approx([1.1] * 5)


def test_loading_comes_before_computing():
    fleet = Fleet(machine=(Machine(samples_per_s=10, io_s_per_sample=0.05),))
    _, events = simulate(make_algorithm("sync"), fleet, batch_size=10, samples=10)
    load = next(event for event in events if isinstance(event, Load))
    compute = next(event for event in events if isinstance(event, Compute))
    assert (load.t, load.until, load.samples) == (0, 0.5, 10)
    assert (compute.t, compute.until) == (0.5, 1.5)


def test_waits_and_transfers_fill_the_gaps():
    network = Network(bandwidth_bytes_per_s=400, latency_s=0.0)
    _, events = simulate(make_algorithm("sync"), paces(20, 10, jitter=0.0, network=network), batch_size=10, samples=20)
    waits = {event.who: (event.t, event.until) for event in events if isinstance(event, Wait)}
    assert waits == {"worker-0": (0.5, 1.1), "worker-1": (1.0, 1.1)}
    transfer = next(event for event in events if isinstance(event, Transfer))
    assert (transfer.t, transfer.until, transfer.who, transfer.nbytes) == (1.0, 1.1, "workers", BYTES)


def test_a_killed_machine_ends_the_run_if_that_is_wanted_and_is_named():
    fleet = replace(paces(1000, 1000, jitter=0.0), fault=(PlannedFault(worker="worker-1", at_s=0.5),))
    outcome, events = simulate(make_algorithm("sync"), fleet, samples=100_000, on_failure="stop")
    assert outcome.error.exit_code == 4
    assert "worker-1 was killed at 0.5 s" in outcome.reason
    assert [(e.t, e.who, e.what) for e in events if isinstance(e, Fault)] == [(0.5, "worker-1", "kill")]
    assert events[-1].t == 0.5
    assert set(outcome.model) == {"at"}


def test_a_fault_after_the_end_does_not_happen():
    fleet = replace(paces(1000, jitter=0.0), fault=(PlannedFault(worker="worker-0", at_s=5),))
    outcome, events = simulate(make_algorithm("sync"), fleet, samples=1000)
    assert outcome.error is None
    assert not [event for event in events if isinstance(event, Fault)]


def test_a_pause_stops_the_machine_for_its_time():
    pause = PlannedFault(worker="worker-0", at_s=0.25, kind="pause", back_at_s=1.25)
    fleet = replace(paces(100, jitter=0.0), fault=(pause,))
    _, events = simulate(make_algorithm("sync"), fleet, batch_size=50, samples=100)
    assert [event.t for event in updates(events)] == pytest.approx([1.5, 2.0])
    assert [event.what for event in events if isinstance(event, Fault)] == ["pause", "back"]
    assert summarize(events).share_of_limit == pytest.approx(1.0)


@dataclass(frozen=True, kw_only=True)
class Layers(Algorithm):
    """Sync-SGD through communicators: reduce in the subgroup, all-reduce among communicators, broadcast."""

    cut: int = 2

    def subgroups(self, num_workers):
        return tuple(range(self.cut)), tuple(range(self.cut, num_workers))

    async def worker(self, me):
        communicator = me.subgroup.members[-1]
        while me.training:
            batch = await me.load(me.batch_size)
            await me.reduce(await me.gradient(batch=batch), communicator, me.subgroup)
            me.step(await me.broadcast(None, communicator, me.subgroup))

    async def communicator(self, me):
        while True:
            gradient = await me.reduce(None, me.address, me.subgroup)
            total = await me.all_reduce(gradient, me.communicators)
            await me.broadcast(total, me.address, me.subgroup)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_reduce_and_broadcast_through_communicators_are_sync(cut):
    fleet = paces(4000, 2000, 1000, 1000, jitter=0.0)
    layered, events = simulate(Layers(cut=cut), fleet, momentum=0.9, lr=0.03)
    sync, _ = simulate(make_algorithm("sync"), fleet, momentum=0.9, lr=0.03)
    torch.testing.assert_close(layered.model["at"], sync.model["at"], rtol=1e-4, atol=1e-6)
    assert events[0].groups["communicators"] == ["communicator-0", "communicator-1"]
    kinds = [event.what for event in events if isinstance(event, Transfer)]
    assert set(kinds) == {"reduce", "all-reduce", "broadcast"}


@pytest.mark.parametrize("cut", [0, 4, 5])
def test_subgroups_that_are_no_partition_are_refused(cut):
    """An empty subgroup, twice; and a rank that there is not."""
    with pytest.raises(InputError, match="Layers divides its workers into"):
        simulate(Layers(cut=cut), paces(*[1000] * 4, jitter=0.0))


@dataclass(frozen=True, kw_only=True)
class Peeking(Algorithm):
    """Sync-SGD that looks ahead before every step, to no effect."""

    async def worker(self, me):
        while me.training:
            gradient = await me.gradient()
            ahead = me.peek(gradient)
            assert not torch.equal(ahead.values, me.parameters.values)
            there = await me.gradient(batch=await me.load(), at=ahead)
            assert not torch.equal(there.total, gradient.total)
            me.step(gradient)
            torch.testing.assert_close(me.parameters.values, ahead.values)


def test_peeking_sees_the_step_and_changes_nothing():
    outcome, _ = simulate(Peeking(), paces(1000, jitter=0.0), momentum=0.9, samples=400)
    assert outcome.error is None


@dataclass(frozen=True, kw_only=True)
class Chatty(Algorithm):
    """Messages from chosen senders, in an order other than that of arrival."""

    async def worker(self, me):
        others = [other for other in me.workers if other is not me.address]
        if me.rank == 0:
            tensors = [(await me.receive(other)).body for other in reversed(others)]
            assert [int(tensor) for tensor in tensors] == [2, 1]
            me.send(others[0], nine=9.0)
        else:
            await me.gradient(10 * me.rank)
            me.send(me.workers.members[0], torch.tensor(me.rank))
            if me.rank == 1:
                assert (await me.receive()).notes["nine"] == 9.0


def test_messages_wait_for_who_asks_for_them():
    outcome, _ = simulate(Chatty(), paces(1000, 1000, 1000, jitter=0.0))
    assert outcome.error is None


@dataclass(frozen=True, kw_only=True)
class Stuck(Algorithm):
    """Worker 0 leaves; the others wait for it."""

    async def worker(self, me):
        if me.rank:
            await me.all_reduce(await me.gradient())


def test_a_deadlock_names_who_waits_for_whom():
    outcome, events = simulate(Stuck(), paces(1000, 1000, jitter=0.0))
    assert outcome.error.exit_code == 5
    assert "worker-1 for worker-0 in a all-reduce" in outcome.reason
    assert events[-1].reason == outcome.reason


@dataclass(frozen=True, kw_only=True)
class Confused(Algorithm):
    """Members of a group who start different collectives."""

    async def worker(self, me):
        gradient = await me.gradient()
        if me.rank:
            await me.all_reduce(gradient)
        else:
            await me.broadcast(gradient, me.address, me.workers)


def test_mixed_up_collectives_are_our_fault_and_keep_their_traceback():
    with pytest.raises(RuntimeError, match="starts a all-reduce in workers where others broadcast"):
        simulate(Confused(), paces(1000, 1000, jitter=0.0))


def test_batchnorm_models_train_and_are_saved_whole():
    @dataclass(frozen=True)
    class Normed(Digits):
        models: ClassVar[Any] = ("cnn",)  # Any: the type of Digits' own tuple has its length
        model_name: str = "cnn"

    outcome, events = simulate(make_algorithm("sync"), task=Normed(), samples=6000, lr=0.1, momentum=0.9)
    assert summarize(events).accuracy > 0.8
    assert set(outcome.model) == set(Normed().model().state_dict())
    assert int(outcome.model["1.num_batches_tracked"]) == summarize(events).updates


def test_lr_schedules_follow_samples():
    frozen = OptimizerSpec(lr=0.1, schedule=Schedule(warmup_samples=10**9))
    outcome, _ = simulate(make_algorithm("sync"), optimizer=frozen, samples=100)
    torch.testing.assert_close(outcome.model["at"], torch.ones(10), rtol=1e-5, atol=1e-5)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    simulate(make_algorithm("sync"), task=Digits(), samples=100)
    assert torch.equal(torch.rand(2), expected)


def test_the_event_file_is_the_same_in_another_process(tmp_path):
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from ownpace import execute, Config\n"
        "from pathlib import Path\n"
        "import sys\n"
        "execute(Config(algorithm='balanced', fleet='steep', epochs=2), Path(sys.argv[1]))\n"
    )
    contents = []
    for name, hash_seed in (("a", "1"), ("b", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment)
        contents.append((tmp_path / name / "events.jsonl").read_bytes())
    assert contents[0] == contents[1]
    _, events = simulate(make_algorithm("balanced"), samples=200)
    assert len({to_line(event) for event in events}) == len(events)
