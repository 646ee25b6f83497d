"""What holds of every algorithm: the registry feeds these checks, so none escapes them.

An invariant that an algorithm breaks by its nature is named above the tests, with the reason; it holds for all others.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace import ALGORITHMS, make_algorithm
from ownpace.core.contract.events import Compute, End, Evaluation, Run, Update
from ownpace.core.learning.sampling import Permutations
from ownpace.fleet import PRESETS, Fleet, Machine, Network, ServerMachine, paces
from ownpace.report import summarize
from ownpace.tasks import Digits, Quadratic
from ownpace.testing import CHECKS, check_algorithm, simulate
from ownpace.testing.conformance import Subject, check_counts, of
from ownpace.testing.runs import watched

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "pace-share": ("pace", {"predict": "share", "micro": "fixed", "lr_rule": "sqrt"}),
    "pace-blind": ("pace", {"predict": "none", "lr_rule": "linear", "smoothing": 1.0}),
    "pace-capped": ("pace", {"max_batch": 24, "warmup": 5, "lr_rule": "adascale"}),
    "pace-exact": ("pace", {"target_batch": 30}),
    "abs-capped": ("abs", {"max_batch": 24}),
    "abs-exact": ("abs", {"target_batch": 30}),
    "acco-capped": ("acco", {"max_batch": 48}),
    "acco-exact": ("acco", {"target_batch": 30}),
    "sync-served": ("sync", {"via": "servers"}),
    "balanced-at-once": ("balanced", {"smoothing": 1.0, "tolerance": 0.0}),
    "abs-equal-time": ("abs", {"micro": "equal-time", "lr_rule": "linear", "smoothing": 0.5}),
    "acco-equal-time": ("acco", {"micro": "equal-time", "lr_rule": "sqrt", "smoothing": 1.0}),
    "od-ahead": ("od", {"warmup": 5, "by_layer": True}),
    "od-exact": ("od", {"warmup": 3, "local_momentum": 0.9, "local_weight_decay": 0.01}),
    "od-compensated": ("od", {"warmup": 0, "local": "compensated", "compensation": 0.1, "scale": "share"}),
    "od-adaptive": ("od", {"warmup": 2, "local": "adaptive", "decay": 0.9, "form": "all-reduce"}),
    "od-blind": ("od", {"warmup": 0, "local_lr": 0.0, "form": "all-reduce"}),
    "layered-unequal": ("layered", {"sizes": "1,3"}),
    "layered-three": ("layered", {"groups": 3}),
    "grouping-by-hand": ("grouping", {"groups": "0,1/2,3", "staleness_power": 0.5}),
    "grouping-again": ("grouping", {"prerun": 2, "regroup_every": 4, "max_groups": 2, "data": "shares"}),
    "grouping-by-layer": ("grouping", {"prerun": 2, "by_layer": True}),
    "grouping-momenta": ("grouping", {"prerun": 1, "min_gap": 0.1, "momentum": "group", "regroup_every": 1}),
    "async-by-layer": ("async", {"by_layer": True}),
    "stale-in-step": ("stale", {"staleness": 0, "by_layer": True}),
    "dc-async-strong": ("dc-async", {"compensation": 1.0, "by_layer": True}),
    "staleness-aware-by-layer": ("staleness-aware", {"by_layer": True}),
    "backup-none": ("backup", {"backups": 0}),
    "backup-two": ("backup", {"backups": 2}),
    "local-three": ("local", {"steps": 3}),
    "diloco-plain": ("diloco", {"steps": 4, "outer_lr": 1.0, "outer_momentum": 0.0, "by_pace": False}),
    "diloco-at-once": ("diloco", {"steps": 6, "smoothing": 1.0}),
    "stride-steps": ("stride", {"steps": 4, "batch": "fixed", "smoothing": 1.0}),
    "stride-outer": ("stride", {"outer_lr": 0.7, "outer_momentum": 0.5, "max_wait": 0.0}),
    "stride-long": ("stride", {"steps": 12, "batch": "fixed", "pull": 0.5}),
    "stride-bounded": ("stride", {"steps": 3, "max_batch": 80, "warmup": 2, "batch": "fixed"}),
    "cocod-three": ("cocod", {"steps": 3, "smoothing": 1.0}),
    "overlap-local-three": ("overlap-local", {"steps": 3, "pullback": 0.5, "anchor_momentum": 0.3}),
    "wp-squares": ("wp", {"weights": "exp2", "steps": 4, "l2": 0.1}),
    "wp-nodes": ("wp", {"weights": "count", "steps": 4, "per_node": 2}),
    "wp-delayed": ("wp", {"weights": "optimal", "steps": 6, "delay": 1, "noise": 0.2, "distance": 2.0}),
    "wp-one-shot": ("wp", {"steps": 20, "rounds": 1}),
}
"""What defaults hide: other rules and forms, and what begins only after a warm-up or with a regrouping."""
CASES: dict[str, tuple[str, dict[str, object]]] = {**{name: (name, {}) for name in ALGORITHMS}, **VARIANTS}

FOR_FOUR = {"layered-unequal", "grouping-by-hand"}
"""These name their workers, and there are four."""
ONE_UPDATE_LATE = {"pace", "stride", "cocod", "overlap-local", "abs", "acco", "pipe", "od"}
"""While they compute, one update is under way; the run ends when that is made, too."""
DROPS = {"backup": "late gradients are dropped, and their samples with them"}
ENDS_BY_ITSELF = {"wp-one-shot": "it averages once, and that is the end, whatever the budget"}
DELAYED_ALONE = {
    "abs": "applies every gradient one update late, alone too",
    "abs-equal-time": "the same",
    "abs-capped": "the same",
    "pipe": "the same",
    "pace-blind": "without a prediction it is ABS-SGD",
    "od-blind": "without a local step it is Pipe-SGD",
}
NOT_PLAIN_ALONE = {
    "pace-exact": "its batches are larger",
    "abs-exact": "the same",
    "acco": "half of every batch is taken at an estimate of the parameters",
    "acco-equal-time": "the same",
    "acco-capped": "the same",
    "acco-exact": "the same",
    "od-ahead": "the local step of the paper knows no momentum",
    "od-compensated": "the same; and it adds a correction",
    "od-adaptive": "the same",
    "diloco": "the outer step has a learning rate and a momentum of its own",
    "diloco-at-once": "the same",
    "stride-outer": "the outer step has a learning rate and a momentum of its own",
    "overlap-local": "models are pulled back to an anchor with momentum",
    "overlap-local-three": "the same",
    "wp-delayed": "inside a node, gradients are one step old",
}
ASYNCHRONOUS = {"async", "stale", "dc-async", "staleness-aware", "grouping"}
"""The worker that ends last has newer parameters than the others."""

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_case = pytest.mark.parametrize("case", CASES)


def traits(case):
    """What `check_algorithm` is to know of a case."""
    return {
        "num_workers": 4 if case in FOR_FOUR else None,
        "drops_samples": base(case) in DROPS,
        "ends_by_itself": case in ENDS_BY_ITSELF,
        "in_flight": 1 if base(case) in ONE_UPDATE_LATE else None,
    }


@every_case
@pytest.mark.parametrize("check", CHECKS)
def test_conforms(check, case):
    check_algorithm(make(case), only=check, **traits(case))


@every_algorithm
def test_a_longer_run_leaves_no_more_reference_cycles(name):
    """Where only time is simulated nobody looks for them, and each would keep a gradient, or a sum, to the end."""

    def cycles(samples):
        simulate(make(name), samples=samples, timing_only=True, detail=False)
        return gc.collect()

    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()  # what is there already need not be looked through
    try:
        cycles(400)
        assert cycles(2400) < cycles(400) + 50
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


@pytest.mark.parametrize("name", sorted(ASYNCHRONOUS))
def test_asynchronous_workers_end_with_different_parameters(name):
    """Else the check that replicas are identical could not fail."""
    algorithm, ends = watched(make(name))
    simulate(algorithm, PRESETS["mild"][1], samples=500)
    assert not all(torch.equal(ends[0], end) for end in ends[1:])


def make(case):
    return make_algorithm(*CASES[case])


def base(case):
    return CASES[case][0]


def fleets(num_workers=None):
    machines = st.builds(
        Machine,
        samples_per_s=st.floats(100, 5000),
        jitter=st.sampled_from([0.0, 0.3]),
        io_s_per_sample=st.sampled_from([0.0, 1e-3]),
    )
    return st.builds(
        Fleet,
        machine=st.lists(machines, min_size=num_workers or 1, max_size=num_workers or 5).map(tuple),
        network=st.builds(Network, bandwidth_bytes_per_s=st.floats(1e3, 1e9), latency_s=st.floats(0, 1e-2)),
    )


def draw_fleet(data, case):
    return data.draw(fleets(4 if case in FOR_FOUR else None), label="fleet")


def final(outcome):
    return outcome.model["at"]


def losses(events):
    return [event.loss for event in of(Evaluation, events)]


def test_no_parameter_escapes():
    """Every parameter of every algorithm has another value than its default in some variant."""
    varied = {(ALGORITHMS[name], field) for name, parameters in VARIANTS.values() for field in parameters}
    inherited = [ALGORITHMS["simuparallel"]]  # WP-SGD with one of its rules
    classes: list[Any] = list(ALGORITHMS.values())  # all of them dataclasses, though their base class is none
    missing = {
        (cls.__name__, field.name)
        for cls in classes
        if cls not in inherited
        for field in dataclasses.fields(cls)
        if (cls, field.name) not in varied
    }
    assert missing == set()


@pytest.mark.parametrize("case", VARIANTS)
def test_every_parameter_does_something(case):
    """Without any one of its parameters, a variant does not do the same."""
    name, parameters = VARIANTS[case]

    def done(parameters):
        fleet = paces(2000, 1900, 1000, 500, jitter=0.3)
        settings_ = {"sampling": "shards", "samples": 800, "lr": 0.02, "momentum": 0.5}
        outcome, events = simulate(make_algorithm(name, parameters), fleet, **settings_)
        return [(e.t, e.samples, e.staleness) for e in of(Update, events)], final(outcome).tolist()

    whole = done(parameters)
    # The only layer of this task travels as the whole does; what by_layer does is in test_by_layer.py.
    for field in parameters.keys() - {"by_layer"}:
        assert done({other: value for other, value in parameters.items() if other != field}) != whole, field


def test_exceptions_are_of_what_there_is():
    named = FOR_FOUR | set(ENDS_BY_ITSELF) | set(DELAYED_ALONE) | set(NOT_PLAIN_ALONE)
    assert named <= set(CASES)
    assert ONE_UPDATE_LATE | set(DROPS) | ASYNCHRONOUS <= set(ALGORITHMS)


@pytest.mark.parametrize("case", [case for case in CASES if case not in FOR_FOUR])
def test_one_worker_is_sequential_sgd(case):
    """Or what it says instead: gradients one update late, or something else than plain SGD."""
    hyper = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.01}
    outcome, events = simulate(make(case), paces(1000, jitter=0.0), samples=240, **hyper)
    num_steps = of(Update, events)[-1].total_samples // 8
    assert num_steps >= 30 or case in ENDS_BY_ITSELF
    expected = alone(num_steps, delay=int(case in DELAYED_ALONE), **hyper)
    if case in NOT_PLAIN_ALONE:
        assert not torch.allclose(final(outcome), expected, rtol=1e-3)
    else:
        torch.testing.assert_close(final(outcome), expected, rtol=1e-4, atol=1e-6)


def alone(num_steps, *, delay, **hyper):
    """SGD in one loop over the queue's samples; with a delay, each gradient is of the parameters one step before."""
    task = Quadratic()
    model, before = task.model(), task.model()
    optimizer = torch.optim.SGD(model.parameters(), **hyper)
    order = Permutations(1000, 0, 0)
    for step in range(num_steps):
        at = before if delay else model
        samples = task.train_samples().pick(order.indices(8 * step, 8))
        (gradient,) = torch.autograd.grad(task.objective(at, *samples), list(at.parameters()))
        before.load_state_dict(model.state_dict())
        model.at.grad = gradient
        optimizer.step()
    return model.at.detach()


@every_case
@settings(max_examples=8, deadline=None)
@given(data=st.data(), micro_batch=st.sampled_from([None, 3]), seed=st.integers(0, 3))
def test_books_balance_on_any_fleet(case, data, micro_batch, seed):
    """Every computed sample is used once, times are sane, the sums are those of the events."""
    subject = Subject(algorithm=make(case), lr=0.01, **traits(case))
    events = subject.run(draw_fleet(data, case), samples=600, micro_batch=micro_batch, seed=seed)
    check_counts(subject, events, 600)
    run, end, computed = events[0], events[-1], of(Compute, events)
    assert isinstance(run, Run)
    assert isinstance(end, End)
    counted = of(Update, events)[: end.sums.updates]
    assert end.reason == "finished"
    assert end.sums.staleness_mean == pytest.approx(sum(event.staleness for event in counted) / len(counted))
    assert end.sums.staleness_max == max(event.staleness for event in counted)
    for worker in run.groups["workers"]:
        spans = [(event.t, event.until) for event in computed if event.who == worker]
        busy_s = sum(max(0.0, min(b, end.sums.seconds) - a) for a, b in spans)
        assert end.sums.workers[worker].compute_s == pytest.approx(busy_s)
    assert max(event.until for event in computed) <= end.t


@every_case
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_time_alone_takes_the_same_time(case, data):
    """Without gradients, every update happens when it does with them."""
    fleet = draw_fleet(data, case)

    def updates(timing_only):
        _, events = simulate(make(case), fleet, samples=300, timing_only=timing_only, lr=0.01)
        return [(e.t, e.version, e.samples, e.staleness) for e in of(Update, events)]

    assert updates(True) == updates(False)


@every_algorithm
def test_detail_off_leaves_the_sums_as_they_are(name):
    full = summarize(simulate(make_algorithm(name), detail=True, samples=800)[1])
    brief_events = simulate(make_algorithm(name), detail=False, samples=800)[1]
    assert summarize(brief_events) == full
    assert {type(event) for event in brief_events} <= {Run, Evaluation, End}


@every_algorithm
def test_stops_at_the_target(name):
    settings_: dict[str, Any] = {"task": Digits(), "samples": 8000, "lr": 0.1, "momentum": 0.5, "target": 0.7}
    _, whole = simulate(make_algorithm(name), **settings_)
    _, cut = simulate(make_algorithm(name), **settings_, stop_at_target=True)
    last = of(Evaluation, cut)[-1]
    full, stopped = summarize(whole), summarize(cut)
    assert stopped.time_to_target == full.time_to_target
    assert stopped.samples < full.samples
    assert stopped.best_accuracy >= 0.7
    # What was under way at the target is still applied, and may do harm.
    assert last.accuracy >= 0.7 or last.samples > stopped.samples


@pytest.mark.parametrize("num_servers", [2, 4])
@pytest.mark.parametrize("case", ["async", "grouping"])
def test_several_servers_share_the_layers(case, num_servers):
    fleet = Fleet(
        machine=(Machine(samples_per_s=1000, count=4, jitter=0.2),),
        server=tuple(ServerMachine() for _ in range(num_servers)),
    )
    outcome, events = simulate(make(case), fleet, task=Digits(), samples=3000, lr=0.3)
    assert outcome.error is None
    run, end = events[0], events[-1]
    assert len(run.groups["servers"]) == num_servers
    updates = of(Update, events)
    for server in run.groups["servers"]:
        versions = [e.version for e in updates if e.who == server]
        assert versions == list(range(1, len(versions) + 1))
        assert end.sums.updates <= len(versions) < end.sums.updates + 4
        assert all(0 <= e.staleness < 20 for e in updates if e.who == server)
    assert summarize(events).accuracy > 0.6
    assert set(outcome.model) == set(Digits().model().state_dict())


@every_algorithm
def test_divergence_ends_the_run_and_says_at_which_sample(name):
    outcome, events = simulate(make_algorithm(name), lr=1e6, samples=8000)
    assert "diverged" in outcome.reason
    assert "at sample" in outcome.reason
    assert outcome.error.exit_code == 3
    assert events[-1].reason == outcome.reason
    assert math.isfinite(events[-1].t)
