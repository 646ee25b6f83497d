"""Layers on their own way: the same parameters bit for bit, and times that follow from a recurrence."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from tests.conformance.plain import updates
from torch import nn

from ownpace import make_algorithm
from ownpace.core.contract.events import Compute, Event, Transfer, Wait
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, Slowdown
from ownpace.report import summarize
from ownpace.tasks import Digits
from ownpace.testing import simulate

WIDTH = 8
LAYER_BYTES = 4 * WIDTH * WIDTH


@dataclass(frozen=True)
class Equal(Task):
    """Layers that are all alike."""

    layers: int = 6

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers)))

    def train_samples(self) -> TensorSamples:
        inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
        return TensorSamples(inputs, torch.zeros(64, dtype=torch.int64))

    def test_samples(self) -> TensorSamples:
        return self.train_samples()


# The same parameters ------------------------------------------------------------------------------------------------

LOCK_STEP = [
    ("grouping", {"groups": "0,1,2"}, 3),
    ("grouping", {"groups": "0,1,2", "momentum": "group"}, 3),
    ("od", {"warmup": 2, "local": "adaptive"}, 3),
    ("async", {}, 1),
    ("stale", {"staleness": 0}, 1),
    ("staleness-aware", {}, 1),
    ("dc-async", {}, 1),
]


@pytest.mark.parametrize("micro_batch", [8, 3])
@pytest.mark.parametrize(("name", "parameters", "num_workers"), LOCK_STEP)
def test_in_lock_step_the_parameters_are_the_same_bit_for_bit(name, parameters, num_workers, micro_batch):
    fleet = Fleet(
        machine=tuple(Machine(samples_per_s=8 / (1 + 0.37 * rank), jitter=0.1) for rank in range(num_workers)),
        network=Network(bandwidth_bytes_per_s=20_000.0, latency_s=0.01),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=bandwidth) for bandwidth in (4e4, 2e4, 1e4)),
    )
    ends = []
    for by_layer in (False, True):
        algorithm = make_algorithm(name, {**parameters, "by_layer": by_layer})
        job = {"task": Digits(), "samples": 120 * num_workers, "momentum": 0.9, "lr": 0.05, "micro_batch": micro_batch}
        # By shards: who takes which samples from the queue is a matter of time.
        outcome, events = simulate(algorithm, fleet, **job, sampling="shards")
        assert outcome.error is None
        made = [(update.version, update.samples, update.staleness) for update in updates(events)]
        ends.append((outcome.model, sorted(made), updates(events)[-1].t))
    whole, layered = ends
    assert whole[1] == layered[1]
    assert layered[2] < whole[2]  # it did make a difference to something
    assert all(torch.equal(layered[0][key], tensor) for key, tensor in whole[0].items())


# The same times as a recurrence -------------------------------------------------------------------------------------


@dataclass
class Setting:
    """One worker and its servers."""

    seconds: float
    """Of a gradient."""
    worker: float
    """Bandwidth."""
    servers: tuple[float, ...]
    latency: float
    layers: int

    def owned(self, server: int) -> range:
        """The layers of a server, equal in number."""
        share = self.layers // len(self.servers)
        return range(server * share, (server + 1) * share)


def update_times(setting: Setting, rounds: int) -> list[list[float]]:
    """When each server makes each of its updates: no events, one line after the other for every layer."""
    servers, layers = range(len(setting.servers)), setting.layers
    arrives = [0.0] * layers
    worker_out = worker_in = 0.0
    server_in, server_out = [0.0 for _ in servers], [0.0 for _ in servers]
    owner = [server for server in servers for _ in setting.owned(server)]
    times: list[list[float]] = [[] for _ in servers]
    for _ in range(rounds):
        at = 0.0
        for layer in range(layers):
            at = max(at, arrives[layer]) + setting.seconds / 3 / layers
        pushed = [0.0 for _ in servers]
        for layer in reversed(range(layers)):
            ready, server = at + (layers - layer) / layers * setting.seconds * 2 / 3, owner[layer]
            start = max(ready, worker_out)
            worker_out = start + LAYER_BYTES / setting.worker
            server_in[server] = max(ready, server_in[server]) + LAYER_BYTES / setting.servers[server]
            through = max(worker_out, server_in[server], start + LAYER_BYTES / setting.servers[server])
            pushed[server] = through + setting.latency
        for server in sorted(servers, key=lambda server: pushed[server]):
            times[server].append(pushed[server])
            for layer in setting.owned(server):
                start = max(pushed[server], server_out[server])
                server_out[server] = start + LAYER_BYTES / setting.servers[server]
                worker_in = max(pushed[server], worker_in) + LAYER_BYTES / setting.worker
                through = max(server_out[server], worker_in, start + LAYER_BYTES / setting.worker)
                arrives[layer] = through + setting.latency
    return times


ORDERS = list(itertools.permutations((4000.0, 2000.0, 1000.0)))


@pytest.mark.parametrize("worker", [1500.0, 4000.0, 1e6])
@pytest.mark.parametrize("order", [*ORDERS, (2000.0,), (1000.0, 3000.0)])
def test_times_are_those_of_a_recurrence(order, worker):
    for seconds, layers in ((1.5, 6), (0.2, 12), (9.0, 6)):
        setting = Setting(seconds, worker, order, 0.003, layers)
        rounds = 12
        _, events = run(setting, by_layer=True, samples=8 * rounds)
        expected = update_times(setting, rounds)
        for server in range(len(order)):
            made = [update.t for update in updates(events) if update.who == f"server-{server}"]
            assert made == pytest.approx(expected[server], rel=1e-9)


def run(setting: Setting, *, by_layer: bool, samples: int, **job: object) -> tuple[float, list[Event]]:
    """Samples per second, and the events. Layers go to servers in the order given."""
    fleet = Fleet(
        machine=(Machine(samples_per_s=8 / setting.seconds),),
        network=Network(bandwidth_bytes_per_s=setting.worker, latency_s=setting.latency),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=each) for each in setting.servers),
    )
    # Async-SGD takes servers as the fleet names them; on one worker, Grouping-SGD does the same.
    algorithm = make_algorithm("async", {"by_layer": by_layer})
    outcome, events = simulate(
        algorithm,
        fleet,
        task=Equal(setting.layers),
        samples=samples,
        timing_only=True,
        **job,
    )
    assert outcome.error is None
    summary = summarize(events)
    return summary.samples / summary.seconds, events


def test_a_model_of_one_layer_takes_the_same_time_either_way():
    setting = Setting(0.9, 1500.0, (1000.0,), 0.003, 1)
    times = [[update.t for update in updates(run(setting, by_layer=way, samples=80)[1])] for way in (False, True)]
    assert times[1] == pytest.approx(times[0], rel=1e-12)


def test_the_fastest_server_is_for_the_lowest_layers():
    """Where the slowest link takes as long as computing, the order of servers decides."""
    slowest = 2 * 2 * LAYER_BYTES  # there and back, two of six layers
    fast_first = Setting(1.0, 4.0 * slowest, (4.0 * slowest, 2.0 * slowest, slowest), 1e-6, 6)
    slow_first = Setting(1.0, 4.0 * slowest, (slowest, 2.0 * slowest, 4.0 * slowest), 1e-6, 6)
    rates = {
        (order.servers[0] > order.servers[2], by_layer): run(order, by_layer=by_layer, samples=400)[0]
        for order in (fast_first, slow_first)
        for by_layer in (False, True)
    }
    assert rates[True, True] > 1.4 * rates[False, True]
    assert rates[True, True] > 1.7 * rates[True, False]
    assert rates[True, False] < rates[False, False]  # in one piece, it only costs time


def test_what_is_on_record():
    """Buckets are transfers of their own, a gradient computes for as long as ever, and waits for layers in between."""
    setting = Setting(1.0, 4000.0, (4000.0, 2000.0, 500.0), 1e-3, 6)
    _, events = run(setting, by_layer=True, samples=80)
    sent = [event for event in events if isinstance(event, Transfer)]
    assert {event.nbytes for event in sent} == {LAYER_BYTES}
    assert len(sent) == 10 * 6 * 2
    pushes = [event.who[1] for event in sent if event.who[0] == "worker-0"][:6]
    assert pushes == ["server-2", "server-2", "server-1", "server-1", "server-0", "server-0"]
    computed = [event for event in events if isinstance(event, Compute)]
    waits = [event for event in events if isinstance(event, Wait) and event.what == "layers"]
    assert len(computed) == 10
    assert waits
    for event in computed[1:]:
        waited = sum(wait.until - wait.t for wait in waits if event.t <= wait.t and wait.until <= event.until)
        assert waited > 0
        assert event.until - event.t - waited == pytest.approx(1.0)
    # What a machine is busy with is computing, not waiting.
    assert summarize(events).busy["worker-0"] == pytest.approx(10 / summarize(events).seconds, rel=1e-6)


def test_a_worker_ends_when_its_last_push_is_in_the_parameters():
    """It awaits the lowest layers alone; the slowest server is at its update long after that."""
    setting = Setting(1.0, 1e6, (1e6, 100.0), 1e-3, 6)
    _, events = run(setting, by_layer=True, samples=24)
    made = [update.who for update in updates(events)]
    assert [made.count(f"server-{server}") for server in range(2)] == [3, 3]


def test_a_slow_down_in_the_middle_counts_for_the_layers_after_it():
    """A machine that stands still in mid-gradient sends its last layers that much later, and its first ones in time."""
    fleet = Fleet(
        machine=(Machine(samples_per_s=8, slowdown=(Slowdown(from_s=0.7, until_s=10.7, factor=1e6),)),),
        network=Network(bandwidth_bytes_per_s=1e12, latency_s=0.0),
    )
    _, events = simulate(make_algorithm("async", {"by_layer": True}), fleet, task=Equal(), samples=8, timing_only=True)
    # The backward pass is from 1/3 s to 1 s, a ninth of a second for each of six layers.
    left = [event.t for event in events if isinstance(event, Transfer) and event.who[0] == "worker-0"]
    expected = [1 / 3 + n / 9 for n in range(1, 7)]
    assert left == pytest.approx([time if time < 0.7 else time + 10 for time in expected], abs=1e-4)
