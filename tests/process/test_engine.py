"""The engine on real processes: what holds of every algorithm holds there, and both engines do the same.

Every algorithm runs here once, and is looked at from all sides. Where one run says as much as another, some algorithms
stand for all, and the others are marked slow.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
from tests.process.schedules import Late, Layers, ScriptedAsync, Unequal
from tests.process.started import PATIENCE_S

from ownpace import ALGORITHMS, Fleet, InputError, Machine, make_algorithm
from ownpace.core.contract.events import Compute, End, Evaluation, Run, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.sampling import Permutations
from ownpace.fleet import ServerMachine, full_speed, paces
from ownpace.report import summarize
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import run_on

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
SHORT: dict[str, dict[str, float]] = {
    "od": {"warmup": 5},
    "grouping": {"prerun": 2, "regroup_every": 20},
    "stride": {"max_wait": 0.0},  # here it would soon wait for its sums
    "diloco": {"steps": 8},
    "wp": {"steps": 8},
    "simuparallel": {"steps": 8},
}
"""What lets a short run come to an algorithm's main part."""
ZERO_STALENESS = {"sync", "balanced", "layered", "backup", "local", "diloco", "wp", "simuparallel"}
AVERAGING = {"local", "diloco", "stride", "cocod", "overlap-local", "wp", "simuparallel"}
ONE_UPDATE_LATE = {"pace", "stride", "cocod", "overlap-local", "abs", "acco", "pipe", "od"}
"""While they compute, one update is under way."""
DROPS = {"backup"}
"""Late gradients are dropped, and their samples with them."""
SIZES = {
    **dict.fromkeys(("sync", "balanced", "pipe", "od", "layered"), 32),
    **dict.fromkeys(("async", "stale", "dc-async", "staleness-aware"), 8),
    "backup": 24,
    "local": 256,
    "cocod": 256,
    "overlap-local": 64,
}
"""Samples of an update, where they are always the same: one, two or eight batches of one, three or four workers."""
BY_MEASURED_GROUPS = {"grouping"}
"""Samples of an update are those of a group: any number of batches, as busy as the machine is."""

synchronous = [name for name, cls in ALGORITHMS.items() if cls().replicas_identical]
with_servers = [name for name, cls in ALGORITHMS.items() if cls().has_servers]


def make(name):
    return make_algorithm(name, SHORT.get(name))


def mostly(names, often):
    """These names; those that are not in `often` are for patient people."""
    return [name if name in often else pytest.param(name, marks=pytest.mark.slow) for name in names]


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def losses(events):
    return [event.loss for event in of(Evaluation, events)]


def nothing_is_lost(name, events):
    """Every computed sample is part of one update."""
    shown = [event for event in of(Update, events) if event.who in ("server-0", *events[0].groups["workers"])]
    used, computed = (sum(event.samples for event in some) for some in (shown, of(Compute, events)))
    return used < computed if name in DROPS else used == computed


def sequential(task, sizes, *, lr, momentum=0.0, seed=0, delay=0):
    """Plain SGD on one machine, over the queue's samples in batches of these sizes.

    With a delay, each gradient is of the parameters one step before.
    """
    model, before = task.model(), task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    order, start = Permutations(len(task.train_samples()), seed, 0), 0
    for size in sizes:
        at = before if delay else model
        samples = task.train_samples().pick(order.indices(start, size))
        (gradient,) = torch.autograd.grad(task.objective(at, *samples), at.parameters())
        before.load_state_dict(model.state_dict())
        model.at.grad = gradient
        optimizer.step()
        start += size
    return model.at.detach()


@pytest.mark.parametrize(("slow", "most", "samples", "late"), [(250, 0.9, 720, 0), (50, 0.1, 360, 1)])
def test_stride_waits_for_sums_where_that_is_cheap(slow, most, samples, late):
    """A sum takes a millisecond here, a round 64: even on a busy machine less than nine tenths of it are lost.

    With steps of the same size, the fast one would wait for the slow one for more than half of a round.
    """
    algorithm = make_algorithm("stride", {"max_wait": most, "batch": "fixed"})
    # Many rounds: waiting is tried after the first sum, from the fourth on, that one of the two had within a step.
    _, events = run_on("process", algorithm, paces(250, slow, jitter=0.0), samples=samples)
    assert [update.staleness for update in of(Update, events)][-2:] == [late, late]


OFTEN = ("async", "balanced", "layered", "pace")


@pytest.mark.parametrize("name", mostly(ALGORITHMS, OFTEN))
def test_the_books_of_a_run(name):
    """One run of each algorithm, looked at from all sides."""
    algorithm = make(name)
    outcome, events = run_on("process", algorithm, task=Quadratic(noise=0.1), samples=3000, lr=0.05, micro_batch=5)
    assert outcome.error is None
    run, end = events[0], events[-1]
    assert isinstance(run, Run)
    assert isinstance(end, End)
    assert (run.engine, end.reason, outcome.reason) == ("process", "finished", "finished")
    assert len(run.groups["workers"]) == 4
    assert ("servers" in run.groups) == algorithm.has_servers
    assert ("communicators" in run.groups) == algorithm.has_communicators

    assert losses(events)[-1] < 0.7 * losses(events)[0]
    updates, computed = of(Update, events), of(Compute, events)
    assert nothing_is_lost(name, events)
    assert [event.version for event in updates] == list(range(1, len(updates) + 1))
    stalest = max(event.staleness for event in updates)
    assert min(event.staleness for event in updates) >= 0
    # Asynchronous: the first gradients of all four are of the same parameters; the last of them is three updates late.
    assert stalest == 0 if name in ZERO_STALENESS else stalest == 1 if name in ONE_UPDATE_LATE else stalest > 1
    sums = end.sums
    counted = updates[: sums.updates]
    sizes = {event.samples for event in counted}
    if name in BY_MEASURED_GROUPS:
        assert sizes <= {8, 16, 24, 32}
    else:
        assert sizes == {SIZES[name]} if name in SIZES else len(sizes) > 1
    assert 3000 <= sums.samples == sum(event.samples for event in counted)
    assert sums.samples - counted[-1].samples < 3000
    late = 1 if name in ONE_UPDATE_LATE else 3 if algorithm.has_servers else 0
    assert len(updates) - sums.updates <= late
    assert sums.staleness_mean == pytest.approx(sum(event.staleness for event in counted) / len(counted))
    assert sums.staleness_max == max(event.staleness for event in counted)
    assert sums.largest_update == max(event.samples for event in counted)
    assert (sums.spread_mean is not None) == (name in AVERAGING)
    for worker in run.groups["workers"]:
        spans = sorted((event.t, event.until) for event in computed if event.who == worker)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
        busy_s = sum(max(0.0, min(b, sums.seconds) - a) for a, b in spans if a < sums.seconds)
        assert sums.workers[worker].compute_s == pytest.approx(busy_s, rel=1e-6)
        assert sums.workers[worker].samples == sum(event.samples for event in computed if event.who == worker)
    assert summarize(events).replicas_identical is (True if name in synchronous else None)
    assert sums.limit_samples_per_s == pytest.approx(8000)
    assert set(outcome.model) == set(Quadratic().model().state_dict())


ALONE = {
    "od": {"warmup": 3, "local_momentum": 0.9},
    "diloco": {"steps": 8, "outer_lr": 1.0, "outer_momentum": 0.0},
}
"""With these parameters they are plain SGD alone. ACCO never is: half of its samples are taken at an estimate. Nor is
Overlap-Local-SGD: its model is an anchor with momentum."""
DELAYED_ALONE = {"abs", "pipe"}


@pytest.mark.parametrize(
    "name",
    mostly(
        [name for name in ALGORITHMS if name not in ("acco", "overlap-local")],
        often=("sync", "async", "pace", "pipe"),
    ),
)
def test_one_worker_is_sequential_sgd_at_full_speed(name):
    """Or, where each gradient is applied one update late, SGD with such gradients."""
    algorithm = make_algorithm(name, ALONE.get(name))
    outcome, events = run_on("process", algorithm, full_speed(1), lr=0.03, momentum=0.9, samples=800)
    num_samples = of(Update, events)[-1].total_samples
    assert num_samples >= 800
    expected = sequential(
        Quadratic(), [8] * (num_samples // 8), lr=0.03, momentum=0.9, delay=int(name in DELAYED_ALONE)
    )
    torch.testing.assert_close(outcome.model["at"], expected, rtol=1e-4, atol=1e-6)
    assert 0 < summarize(events).share_of_limit <= 1


CERTAIN: dict[str, tuple[str, dict[str, object]]] = {
    "sync": ("sync", {}),
    "sync-served": ("sync", {"via": "servers"}),
    "balanced": ("balanced", {}),
    "pipe": ("pipe", {}),
    "pace": ("pace", {"micro": "fixed", "max_batch": 2}),  # of each worker one sample, however fast it is
    "abs": ("abs", {"target_batch": 2}),  # likewise
    "acco": ("acco", {"target_batch": 4}),  # and in each of its two sums
    "layered": ("layered", {}),
    "local": ("local", {"steps": 3}),
    "overlap-local": ("overlap-local", {"steps": 3}),
    "od": ("od", {"warmup": 3, "local": "compensated", "local_momentum": 0.9}),
    "od-all-reduce": ("od", {"warmup": 3, "local": "adaptive", "form": "all-reduce"}),
    "wp": ("wp", {"steps": 3, "per_node": 2, "delay": 1}),
    "grouping": ("grouping", {"groups": "0,1"}),
    "backup": ("backup", {"backups": 0}),
    "diloco": ("diloco", {"steps": 3, "by_pace": False}),
}
"""What does not depend on how fast anybody is, or not in its result."""


@pytest.mark.parametrize("case", mostly(CERTAIN, often=("sync", "balanced", "pace", "layered", "local", "od")))
def test_two_workers_do_what_they_do_in_virtual_time(case):
    """The order of two summands does not matter: with equal batches, even rounding is the same."""
    # Sync-SGD applies the union of a queue's next samples, drawn by any worker; the others must draw the same each.
    sampling = "queue" if case in ("sync", "balanced") else "shards"
    settings: dict[str, Any] = {"fleet": paces(1500, 500, jitter=0.0), "lr": 0.02, "momentum": 0.9, "samples": 480}
    settings |= {"nesterov": True, "clip_norm": 2.0}
    (process, ours), (virtual, theirs) = (
        run_on(engine, make_algorithm(*CERTAIN[case]), sampling=sampling, **settings)
        for engine in ("process", "virtual")
    )
    torch.testing.assert_close(process.model["at"], virtual.model["at"], rtol=1e-6, atol=1e-6)
    if case == "sync":
        assert torch.equal(process.model["at"], virtual.model["at"])
    first, second = ([(e.samples, e.staleness) for e in of(Update, events)] for events in (ours, theirs))
    assert first == second


@pytest.mark.parametrize("algorithm", [Late(), Layers(), Unequal()], ids=lambda algorithm: type(algorithm).__name__)
def test_more_workers_do_the_same_but_for_rounding(algorithm):
    """Deep in the toolbox: late sums, looking ahead, subgroups, communicators, workers without samples."""
    num_workers = 4 if isinstance(algorithm, Layers) else 3
    settings: dict[str, Any] = {
        "fleet": paces(*[1000] * num_workers, jitter=0.0),
        "lr": 0.02,
        "momentum": 0.5,
        "samples": 600,
    }
    outcomes = [run_on(engine, algorithm, sampling="shards", **settings)[0] for engine in ("process", "virtual")]
    assert [outcome.error for outcome in outcomes] == [None, None]
    torch.testing.assert_close(outcomes[0].model["at"], outcomes[1].model["at"], rtol=1e-5, atol=1e-7)


def test_servers_on_a_scripted_schedule_do_bit_for_bit_the_same():
    fleet = Fleet(machine=(Machine(samples_per_s=1000, count=3),), server=(ServerMachine(), ServerMachine()))
    # Each worker goes through its share more than once: an image is cropped and turned anew at each visit.
    task = Digits(crop=2, flip=True, label_smoothing=0.1)
    settings: dict[str, Any] = {"fleet": fleet, "task": task, "lr": 0.1, "momentum": 0.9, "sampling": "shards"}
    settings["nesterov"] = True
    process, virtual = (run_on(engine, ScriptedAsync(), **settings)[0] for engine in ("process", "virtual"))
    assert process.error is None
    assert all(torch.equal(process.model[name], virtual.model[name]) for name in virtual.model)


def test_fixed_costs_are_prescribed_too():
    """Nothing is ever shorter than prescribed, on average; how much longer depends on how busy this machine is."""
    fleet = Fleet(machine=(Machine(samples_per_s=10_000, s_per_batch=0.01, s_per_update=0.02),))
    settings: dict[str, Any] = {"batch_size": 20, "micro_batch": 10, "samples": 400, "lr": 0.01}
    (_, ours), (_, theirs) = (
        run_on(engine, make_algorithm("sync"), fleet, **settings) for engine in ("process", "virtual")
    )
    update_s = 2 * (0.01 + 0.001) + 0.02
    assert of(End, theirs)[0].sums.seconds == pytest.approx(20 * update_s - 0.02)
    assert of(End, ours)[0].sums.seconds > 0.9 * (20 * update_s - 0.02)
    assert min(event.until - event.t for event in of(Compute, ours)) > 0.9 * 0.011


@pytest.mark.parametrize("name", ["sync", "balanced"])
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
    # A batch takes 20 ms or 160 ms: much longer than a busy machine keeps a process waiting.
    _, events = run_on("process", make_algorithm("sync"), paces(400, 50, jitter=0.0), samples=160)
    tallies = events[-1].sums.workers
    fast, slow = (tallies[name].samples / tallies[name].compute_s for name in ("worker-0", "worker-1"))
    assert fast <= 400 * 1.001
    assert slow <= 50 * 1.001
    assert fast > 2 * slow  # they would be equal if waiting counted: both had the same number of samples
    busy = summarize(events).busy
    assert busy["worker-0"] < 0.7 * busy["worker-1"]


@pytest.mark.parametrize("name", mostly(ALGORITHMS, often=("pace", "layered", "wp")))
def test_time_budget(name):
    """Whoever is at something when time is up, all come to an end, and no sample is lost."""
    outcome, events = run_on("process", make(name), seconds=0.6, lr=0.02)
    assert outcome.error is None
    assert events[-1].reason == "finished"
    assert events[-1].t >= 0.6
    assert 0 < summarize(events).seconds < 0.6 + 1.0  # an update may have been under way for a while
    assert nothing_is_lost(name, events)


@pytest.mark.parametrize("name", mostly(ALGORITHMS, often=("pace",)))
def test_stops_at_the_target(name):
    settings: dict[str, Any] = {"task": Digits(), "lr": 0.05, "momentum": 0.5, "batch_size": 16}
    _, events = run_on(
        "process", make(name), samples=4_000_000, target=0.8, stop_at_target=True, eval_every=1000, **settings
    )
    summary = summarize(events)
    assert summary.reason == "finished"
    assert summary.samples < 4_000_000
    assert summary.best_accuracy >= 0.8


@pytest.mark.parametrize("name", mostly(with_servers, often=("grouping",)))
def test_several_servers_share_the_layers(name):
    fleet = Fleet(machine=(Machine(samples_per_s=2000, count=3),), server=(ServerMachine(),) * 3)
    outcome, events = run_on("process", make(name), fleet, task=Digits(), samples=9000, lr=0.1)
    assert outcome.error is None
    assert len(events[0].groups["servers"]) == 3
    for server in events[0].groups["servers"]:
        versions = [event.version for event in of(Update, events) if event.who == server]
        assert versions == list(range(1, len(versions) + 1))
    assert nothing_is_lost(name, events)
    assert summarize(events).accuracy > 0.75


@pytest.mark.parametrize("name", mostly(ALGORITHMS, often=("pace",)))
def test_any_optimizer(name):
    spec = OptimizerSpec(name="adamw", lr=0.02)
    _, events = run_on("process", make(name), optimizer=spec, samples=6000, task=Quadratic(noise=0.1))
    assert losses(events)[-1] < 0.3 * losses(events)[0]


@pytest.mark.parametrize("name", mostly(ALGORITHMS, often=("pace",)))
def test_divergence_names_worker_sample_and_layer(name):
    outcome, events = run_on("process", make(name), lr=1e12, samples=80_000)
    assert outcome.error.exit_code == 3
    assert "diverged" in outcome.reason
    assert "sample" in outcome.reason
    assert events[-1].reason == outcome.reason


def test_what_cannot_be_handed_to_another_process_is_said_so():
    class Holding(Quadratic):
        def __init__(self) -> None:
            super().__init__()
            object.__setattr__(self, "lock", threading.Lock())

    with pytest.raises(InputError, match=r"cannot pickle '_thread\.lock' object; keep what cannot be copied"):
        run_on("process", make_algorithm("sync"), task=Holding())
