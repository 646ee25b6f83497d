"""What holds of every algorithm: the registry feeds these checks, so none escapes them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.events import Compute, End, Evaluation, Run, Update, to_line
from ownpace.core.optimizer import OptimizerSpec
from ownpace.core.sampling import Permutations
from ownpace.engines.job import Job
from ownpace.engines.virtual.runner import VirtualRun
from ownpace.fleet import PRESETS, Fleet, Machine, Network, ServerMachine, paces
from ownpace.report import summarize
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import simulate

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
fleets = st.builds(
    Fleet,
    machine=st.lists(
        st.builds(
            Machine,
            samples_per_s=st.floats(100, 5000),
            jitter=st.sampled_from([0.0, 0.3]),
            io_s_per_sample=st.sampled_from([0.0, 1e-3]),
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    network=st.builds(Network, bandwidth_bytes_per_s=st.floats(1e3, 1e9), latency_s=st.floats(0, 1e-2)),
)


def final(outcome):
    return outcome.model["at"]


@every_algorithm
def test_finds_the_minimum_of_a_parabola(name):
    outcome, events = simulate(make_algorithm(name), lr=0.05, samples=30_000, task=Quadratic(noise=0.1))
    scores = [event.loss for event in events if isinstance(event, Evaluation)]
    floor = Quadratic(noise=0.1).score(_at_minimum(), Quadratic(noise=0.1).test_samples()).loss
    assert scores[-1] - floor < 0.01 * (scores[0] - floor)
    assert outcome.error is None


def _at_minimum():
    model = Quadratic().model()
    model.at.data.zero_()
    return model


@every_algorithm
def test_one_worker_is_sequential_sgd(name):
    task = Quadratic()
    outcome, _ = simulate(
        make_algorithm(name), paces(1000, jitter=0.0), lr=0.03, momentum=0.9, weight_decay=0.01, samples=800, task=task
    )
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=0.01)
    order = Permutations(1000, 0, 0)
    for start in range(0, 800, 8):
        optimizer.zero_grad()
        task.objective(model, *task.train_samples().pick(order.indices(start, 8))).backward()
        optimizer.step()
    torch.testing.assert_close(final(outcome), model.at.detach(), rtol=1e-4, atol=1e-6)


@every_algorithm
def test_same_seed_same_bytes_other_seed_others(name):
    def lines(seed):
        return [to_line(event) for event in simulate(make_algorithm(name), PRESETS["steep"][1], seed=seed)[1]]

    assert lines(0) == lines(0)
    assert lines(0)[1:] != lines(1)[1:]


@every_algorithm
@settings(max_examples=20, deadline=None)
@given(fleet=fleets, micro_batch=st.sampled_from([None, 3]), seed=st.integers(0, 3))
def test_books_balance(name, fleet, micro_batch, seed):
    """On any fleet: every computed sample is used once, times are sane, the sums are those of the events."""
    outcome, events = simulate(make_algorithm(name), fleet, samples=600, micro_batch=micro_batch, seed=seed, lr=0.01)
    run, end = events[0], events[-1]
    assert isinstance(run, Run)
    assert isinstance(end, End)
    assert outcome.reason == end.reason == "finished"
    updates = [event for event in events if isinstance(event, Update)]
    computed = [event for event in events if isinstance(event, Compute)]

    assert sum(event.samples for event in updates) == sum(event.samples for event in computed)
    assert [event.version for event in updates] == list(range(1, len(updates) + 1))
    assert all(event.staleness >= 0 for event in updates)
    # The sums are those of the moment at which the budget was spent; what was in flight then is finished, too.
    sums = end.sums
    counted = updates[: sums.updates]
    assert 600 <= sums.samples < 600 + len(fleet.workers) * 8
    assert len(updates) - sums.updates < len(fleet.workers)
    assert (counted[-1].total_samples, counted[-1].t) == (sums.samples, sums.seconds)
    assert sums.staleness_mean == pytest.approx(sum(event.staleness for event in counted) / len(counted))
    assert sums.staleness_max == max(event.staleness for event in counted)

    for worker in run.groups["workers"]:
        spans = [(event.t, event.until) for event in computed if event.who == worker]
        assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(spans))
        busy_s = sum(max(0.0, min(b, sums.seconds) - a) for a, b in spans)
        assert sums.workers[worker].compute_s == pytest.approx(busy_s)
    assert max(event.until for event in computed) <= end.t


@every_algorithm
@settings(max_examples=10, deadline=None)
@given(fleet=fleets)
def test_time_alone_takes_the_same_time(name, fleet):
    """Without gradients, every update happens when it does with them."""

    def updates(timing_only):
        _, events = simulate(make_algorithm(name), fleet, samples=400, timing_only=timing_only, lr=0.01)
        return [(e.t, e.version, e.samples, e.staleness) for e in events if isinstance(e, Update)]

    assert updates(True) == updates(False)


@every_algorithm
def test_detail_off_leaves_the_sums_as_they_are(name):
    full = summarize(simulate(make_algorithm(name), detail=True)[1])
    brief_events = simulate(make_algorithm(name), detail=False)[1]
    assert summarize(brief_events) == full
    assert {type(event) for event in brief_events} <= {Run, Evaluation, End}


@every_algorithm
def test_replicas_are_identical_where_promised(name):
    algorithm = make_algorithm(name)
    job = Job(algorithm=algorithm, task=Digits(), fleet=PRESETS["mild"][1], batch_size=8, samples=2000)
    run = VirtualRun(job, lambda event: None, None)
    assert run.run().error is None
    copies = [worker.parameters.values for worker in run._workers]
    identical = all(torch.equal(copies[0], copy) for copy in copies)
    if algorithm.replicas_identical:
        assert identical
    elif name == "async":
        assert not identical  # else this test could not fail


@every_algorithm
def test_time_budget(name):
    _, events = simulate(make_algorithm(name), seconds=1.0, lr=0.01)
    end = events[-1]
    assert 1.0 <= end.t < 1.1
    assert end.reason == "finished"


@every_algorithm
def test_stops_at_the_target(name):
    settings_ = {"task": Digits(), "samples": 60_000, "lr": 0.05, "momentum": 0.5, "target": 0.9}
    _, whole = simulate(make_algorithm(name), **settings_)
    _, cut = simulate(make_algorithm(name), **settings_, stop_at_target=True)
    whole, cut = summarize(whole), summarize(cut)
    assert cut.time_to_target == whole.time_to_target
    assert cut.samples < whole.samples
    assert cut.accuracy >= 0.9


@every_algorithm
@pytest.mark.parametrize("sampling", ["queue", "iid", "shards"])
def test_every_way_of_sampling(name, sampling):
    _, events = simulate(make_algorithm(name), sampling=sampling, samples=8000, lr=0.05)
    scores = [event.loss for event in events if isinstance(event, Evaluation)]
    assert scores[-1] < scores[0]


@every_algorithm
def test_any_optimizer(name):
    spec = OptimizerSpec(name="adamw", lr=0.01)
    _, events = simulate(make_algorithm(name), optimizer=spec, samples=20_000, task=Quadratic(noise=0.1))
    scores = [event.loss for event in events if isinstance(event, Evaluation)]
    assert scores[-1] < 0.2 * scores[0]


@every_algorithm
def test_a_worker_of_no_account_stops_nobody_for_ever(name):
    """One machine is a thousand times slower; everybody still comes to an end."""
    outcome, events = simulate(make_algorithm(name), paces(5000, 5000, 5, jitter=0.0), samples=400)
    assert outcome.error is None
    assert events[-1].sums.samples >= 400


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls().has_servers])
@pytest.mark.parametrize("num_servers", [1, 2, 4])
def test_several_servers_share_the_layers(name, num_servers):
    fleet = Fleet(
        machine=(Machine(samples_per_s=1000, count=3, jitter=0.2),),
        server=tuple(ServerMachine() for _ in range(num_servers)),
    )
    outcome, events = simulate(make_algorithm(name), fleet, task=Digits(), samples=20_000, lr=0.05)
    run, end = events[0], events[-1]
    assert len(run.groups["servers"]) == num_servers
    updates = [event for event in events if isinstance(event, Update)]
    for server in run.groups["servers"]:
        versions = [e.version for e in updates if e.who == server]
        assert versions == list(range(1, len(versions) + 1))
        assert end.sums.updates <= len(versions) < end.sums.updates + 3
        assert all(0 <= e.staleness < 20 for e in updates if e.who == server)
    assert summarize(events).accuracy > 0.85
    assert set(outcome.model) == set(Digits().model().state_dict())


@every_algorithm
def test_divergence_ends_the_run_and_says_at_which_sample(name):
    outcome, events = simulate(make_algorithm(name), lr=1e6, samples=8000)
    assert "diverged" in outcome.reason
    assert "at sample" in outcome.reason
    assert outcome.error.exit_code == 3
    assert events[-1].reason == outcome.reason
    assert math.isfinite(events[-1].t)
