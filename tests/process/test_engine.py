"""The engine on real processes: what holds of every algorithm holds there, and both engines do the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.process.schedules import Late, Layers, ScriptedAsync, Unequal

from ownpace import ALGORITHMS, Fleet, Machine, make_algorithm
from ownpace.core.events import Compute, End, Evaluation, Run, Update
from ownpace.core.optimizer import OptimizerSpec
from ownpace.core.sampling import Permutations
from ownpace.fleet import ServerMachine, full_speed, paces
from ownpace.report import summarize
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import run_on

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
synchronous = [name for name, cls in ALGORITHMS.items() if cls().replicas_identical]
with_servers = [name for name, cls in ALGORITHMS.items() if cls().has_servers]


def sequential(task, sizes, *, lr, momentum=0.0, seed=0):
    """Plain SGD on one machine, over the queue's samples in batches of these sizes."""
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    order, start = Permutations(len(task.train_samples()), seed, 0), 0
    for size in sizes:
        optimizer.zero_grad()
        task.objective(model, *task.train_samples().pick(order.indices(start, size))).backward()
        optimizer.step()
        start += size
    return model.at.detach()


@every_algorithm
def test_the_books_of_a_run(name):
    """One run of each algorithm, looked at from all sides."""
    outcome, events = run_on(
        "process", make_algorithm(name), task=Quadratic(noise=0.1), samples=3000, lr=0.05, micro_batch=5
    )
    assert outcome.error is None
    run, end = events[0], events[-1]
    assert isinstance(run, Run)
    assert isinstance(end, End)
    assert (run.engine, end.reason, outcome.reason) == ("process", "finished", "finished")
    assert len(run.groups["workers"]) == 4
    assert ("servers" in run.groups) == make_algorithm(name).has_servers

    scores = [event.loss for event in events if isinstance(event, Evaluation)]
    assert scores[-1] < 0.7 * scores[0]
    updates = [event for event in events if isinstance(event, Update)]
    computed = [event for event in events if isinstance(event, Compute)]
    assert sum(event.samples for event in updates) == sum(event.samples for event in computed)
    assert [event.version for event in updates] == list(range(1, len(updates) + 1))
    assert all(event.staleness >= 0 for event in updates)
    sums = end.sums
    counted = updates[: sums.updates]
    assert 3000 <= sums.samples == sum(event.samples for event in counted) < 3000 + 4 * 8
    assert sums.staleness_mean == pytest.approx(sum(event.staleness for event in counted) / len(counted))
    assert sums.staleness_max == max(event.staleness for event in counted)
    assert (max(event.staleness for event in updates) == 0) == (name in synchronous)
    for worker in run.groups["workers"]:
        spans = sorted((event.t, event.until) for event in computed if event.who == worker)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
        busy_s = sum(max(0.0, min(b, sums.seconds) - a) for a, b in spans if a < sums.seconds)
        assert sums.workers[worker].compute_s == pytest.approx(busy_s, rel=1e-6)
        assert sums.workers[worker].samples == sum(event.samples for event in computed if event.who == worker)
    assert summarize(events).replicas_identical is (True if name in synchronous else None)
    assert sums.limit_samples_per_s == pytest.approx(8000)
    assert set(outcome.model) == set(Quadratic().model().state_dict())


@every_algorithm
def test_one_worker_is_sequential_sgd_at_full_speed(name):
    outcome, events = run_on("process", make_algorithm(name), full_speed(1), lr=0.03, momentum=0.9, samples=800)
    expected = sequential(Quadratic(), [8] * 100, lr=0.03, momentum=0.9)
    torch.testing.assert_close(outcome.model["at"], expected, rtol=1e-4, atol=1e-6)
    assert 0 < summarize(events).share_of_limit <= 1


@pytest.mark.parametrize("name", synchronous)
def test_two_workers_do_what_they_do_in_virtual_time(name):
    """The order of two summands does not matter: with equal batches, even rounding is the same."""
    settings = {"fleet": paces(1500, 500, jitter=0.0), "lr": 0.02, "momentum": 0.9, "samples": 1200}
    (process, ours), (virtual, theirs) = (
        run_on(engine, make_algorithm(name), **settings) for engine in ("process", "virtual")
    )
    torch.testing.assert_close(process.model["at"], virtual.model["at"], rtol=1e-6, atol=1e-6)
    if name == "sync":
        assert torch.equal(process.model["at"], virtual.model["at"])
    assert [e.samples for e in ours if isinstance(e, Update)] == [e.samples for e in theirs if isinstance(e, Update)]


@pytest.mark.parametrize("algorithm", [Late(), Layers(), Unequal()], ids=lambda algorithm: type(algorithm).__name__)
def test_more_workers_do_the_same_but_for_rounding(algorithm):
    """Deep in the toolbox: late sums, looking ahead, subgroups, communicators, workers without samples."""
    num_workers = {Unequal: 3, Late: 3, Layers: 4}[type(algorithm)]
    settings = {"fleet": paces(*[1000] * num_workers, jitter=0.0), "lr": 0.02, "momentum": 0.5, "samples": 600}
    outcomes = [run_on(engine, algorithm, sampling="shards", **settings)[0] for engine in ("process", "virtual")]
    assert [outcome.error for outcome in outcomes] == [None, None]
    torch.testing.assert_close(outcomes[0].model["at"], outcomes[1].model["at"], rtol=1e-5, atol=1e-7)


def test_servers_on_a_scripted_schedule_do_bit_for_bit_the_same():
    fleet = Fleet(machine=(Machine(samples_per_s=1000, count=3),), server=(ServerMachine(), ServerMachine()))
    settings = {"fleet": fleet, "task": Digits(), "lr": 0.1, "momentum": 0.9, "sampling": "shards"}
    process, virtual = (run_on(engine, ScriptedAsync(), **settings)[0] for engine in ("process", "virtual"))
    assert process.error is None
    assert all(torch.equal(process.model[name], virtual.model[name]) for name in virtual.model)


@pytest.mark.parametrize("name", synchronous)
def test_the_applied_gradient_is_that_of_the_union(name):
    """Unequal paces make unequal batches; the result is that of one machine with all of their samples."""
    outcome, events = run_on("process", make_algorithm(name), paces(4000, 1000, 500, jitter=0.0), lr=0.05, samples=960)
    expected = sequential(Quadratic(), [24] * 40, lr=0.05)
    torch.testing.assert_close(outcome.model["at"], expected, rtol=1e-4, atol=1e-6)
    sizes = {event.samples for event in events if isinstance(event, Compute)}
    assert (len(sizes) > 1) == (name == "balanced")


def test_the_applied_gradient_is_that_of_the_union_even_if_one_has_nothing():
    outcome, _ = run_on("process", Unequal(sizes=(7, 0, 3)), full_speed(3), lr=0.05, samples=400)
    torch.testing.assert_close(outcome.model["at"], sequential(Quadratic(), [10] * 40, lr=0.05), rtol=1e-4, atol=1e-6)


def test_large_models_go_in_buckets_while_the_backward_pass_goes_on():
    """Several buckets over several channels, started by layers: the sum is the same."""
    from tests.process.wide import Wide

    outcomes = [
        run_on(engine, make_algorithm("sync"), fleet, task=Wide(), samples=320, micro_batch=5, lr=0.05)[0]
        for engine, fleet in (("process", full_speed(2)), ("virtual", paces(1000, 1000, jitter=0.0)))
    ]
    assert [outcome.error for outcome in outcomes] == [None, None]
    for name, value in outcomes[1].model.items():
        torch.testing.assert_close(outcomes[0].model[name], value, rtol=1e-4, atol=1e-6)


def test_paces_are_measured_on_computing_alone():
    """Waiting for the slow one does not make the fast one slow."""
    _, events = run_on("process", make_algorithm("sync"), paces(4000, 500, jitter=0.0), samples=800)
    tallies = events[-1].sums.workers
    shown = {name: tally.samples / tally.compute_s for name, tally in tallies.items()}
    assert shown == {"worker-0": pytest.approx(4000, rel=0.15), "worker-1": pytest.approx(500, rel=0.15)}
    assert summarize(events).busy["worker-0"] < 0.3


@pytest.mark.parametrize("name", ["sync", "async"])
def test_time_budget_and_target(name):
    settings = {"task": Digits(), "lr": 0.05, "momentum": 0.5, "batch_size": 16}
    _, events = run_on("process", make_algorithm(name), seconds=0.6, **settings)
    assert events[-1].reason == "finished"
    assert summarize(events).seconds == pytest.approx(0.6, abs=0.1)
    _, events = run_on(
        "process", make_algorithm(name), samples=400_000, target=0.8, stop_at_target=True, eval_every=1000, **settings
    )
    summary = summarize(events)
    assert summary.reason == "finished"
    assert summary.samples < 200_000
    assert summary.best_accuracy >= 0.8


@pytest.mark.parametrize("name", with_servers)
def test_several_servers_share_the_layers(name):
    fleet = Fleet(machine=(Machine(samples_per_s=2000, count=3),), server=(ServerMachine(),) * 3)
    outcome, events = run_on("process", make_algorithm(name), fleet, task=Digits(), samples=15_000, lr=0.05)
    assert outcome.error is None
    assert len(events[0].groups["servers"]) == 3
    for server in events[0].groups["servers"]:
        versions = [event.version for event in events if isinstance(event, Update) and event.who == server]
        assert versions == list(range(1, len(versions) + 1))
    assert summarize(events).accuracy > 0.8


@pytest.mark.parametrize("name", ["sync", "stale"])
def test_any_optimizer(name):
    spec = OptimizerSpec(name="adamw", lr=0.01)
    _, events = run_on("process", make_algorithm(name), optimizer=spec, samples=8000, task=Quadratic(noise=0.1))
    scores = [event.loss for event in events if isinstance(event, Evaluation)]
    assert scores[-1] < 0.3 * scores[0]


@every_algorithm
def test_divergence_names_worker_sample_and_layer(name):
    outcome, events = run_on("process", make_algorithm(name), lr=1e20, samples=80_000)
    assert outcome.error.exit_code == 3
    assert "diverged" in outcome.reason
    assert "sample" in outcome.reason
    assert events[-1].reason == outcome.reason


def test_what_cannot_be_handed_to_another_process_is_said_so():
    class Local(Quadratic):
        pass

    with pytest.raises(Exception, match="at the top of a module"):
        run_on("process", make_algorithm("sync"), task=Local())
