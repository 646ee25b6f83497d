"""Borders in good order: checkpoints, and runs that go on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from ownpace import Algorithm, make_algorithm
from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.events import Evaluation, Event, Generation, Update, to_line
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.schedule import Schedule
from ownpace.engines import Outcome
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine
from ownpace.tasks import Digits
from ownpace.testing import simulate
from ownpace.testing.counted import CountedSamples, counting, miscounted

FLEET = Fleet(
    machine=(
        Machine(samples_per_s=4000, jitter=0.1),
        Machine(samples_per_s=2000, io_s_per_sample=1e-4),
        Machine(samples_per_s=1000, count=2, jitter=0.3),
    ),
    network=Network(bandwidth_bytes_per_s=1e5),
    fault=(PlannedFault(worker="worker-1", at_s=0.15, kind="pause", back_at_s=0.2),),
)


class Kept:
    """Takes checkpoints, each with the number of events before it."""

    def __init__(self) -> None:
        self.states: list[PlainState] = []
        self.after: list[int] = []
        self.events: list[Event] = []

    def take(self, state: PlainState) -> None:
        self.states.append(as_from_a_file(state))
        self.after.append(len(self.events))


def as_from_a_file(state: object) -> Any:
    """The same through what a file can hold: JSON, and tensors of their own. Whatever is not plain data fails."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        assert all(type(key) is str for key in state)
        return {key: as_from_a_file(value) for key, value in state.items()}
    if isinstance(state, Sequence) and not isinstance(state, str):
        return [as_from_a_file(value) for value in state]
    return json.loads(json.dumps(state, allow_nan=False))


def kept_run(algorithm: Algorithm, fleet: Fleet = FLEET, **job: Any) -> tuple[Kept, Outcome]:
    kept = Kept()
    job.setdefault("optimizer", OptimizerSpec(lr=0.02, momentum=0.9))
    outcome, _ = simulate(algorithm, fleet, events=kept.events, on_checkpoint=kept.take, **job)
    return kept, outcome


def assert_same_run(algorithm: Algorithm, fleet: Fleet = FLEET, *, which: int = -1, **job: Any) -> Kept:
    """A run that goes on from one of its checkpoints is the same run."""
    whole, outcome = kept_run(algorithm, fleet, **job)
    assert outcome.error is None
    state, after = whole.states[which], whole.after[which]
    before = as_from_a_file(state)
    rest, resumed = kept_run(algorithm, fleet, resume_from=state, **job)
    assert [to_line(event) for event in rest.events] == [to_line(event) for event in whole.events[after:]]
    assert resumed.model.keys() == outcome.model.keys()
    assert all(torch.equal(resumed.model[name], value) for name, value in outcome.model.items())
    assert str(before) == str(state)  # nothing has written into it
    return whole


VARIANTS: list[tuple[str, dict[str, object]]] = [(name, {}) for name in ALGORITHMS] + [
    ("od", {"warmup": 3}),
    ("od", {"form": "all-reduce", "warmup": 3}),
    ("wp", {"per_node": 2}),
    ("layered", {"groups": 2}),
    ("pace", {"warmup": 3}),
    ("grouping", {"momentum": "group", "prerun": 2}),
]


@pytest.mark.parametrize(("name", "parameters"), VARIANTS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(VARIANTS)])
def test_a_resumed_run_is_the_same_run_bit_for_bit(name, parameters):
    whole = assert_same_run(make_algorithm(name, parameters), checkpoint_every=600, which=1)
    borders = [event for event in whole.events if isinstance(event, Generation)]
    assert [border.number for border in borders] == list(range(2, 2 + len(whole.states)))
    assert all(border.why == "checkpoint" and border.members is None for border in borders)
    assert len(borders) >= 2


@dataclass(frozen=True)
class Normed(Digits):
    """With BatchNorm, whose statistics are each worker's own, and dropout, which draws from torch's generator."""

    models: ClassVar[Any] = ("cnn",)  # Any: the type of Digits' own tuple has its length
    model_name: str = "cnn"

    def model(self):
        return torch.nn.Sequential(torch.nn.Dropout(0.1), super().model())


TWO_SERVERS = replace(FLEET, server=(ServerMachine(), ServerMachine(bandwidth_bytes_per_s=1e7)))


@pytest.mark.parametrize(
    ("name", "fleet", "job"),
    [
        ("sync", FLEET, {"task": Normed(), "samples": 900, "checkpoint_every": 300, "eval_every": 200}),
        ("async", TWO_SERVERS, {"task": Normed(), "samples": 900, "checkpoint_every": 300, "eval_every": 200}),
        ("grouping", TWO_SERVERS, {"sampling": "shards", "parameters": {"data": "shares"}, "task": Digits()}),
        ("pace", FLEET, {"sampling": "iid"}),
        ("balanced", FLEET, {"sampling": "shards"}),
        ("local", FLEET, {"optimizer": OptimizerSpec(name="adam", lr=0.01, schedule=Schedule(shape="cosine"))}),
        ("stale", FLEET, {"optimizer": OptimizerSpec(name="adam", lr=0.01, schedule=Schedule(shape="cosine"))}),
        ("pace", FLEET, {"timing_only": True}),
        ("async", TWO_SERVERS, {"timing_only": True, "task": Digits()}),
        ("layered", FLEET, {"seconds": 0.4}),
        ("wp", FLEET, {"seconds": 0.4, "detail": False}),
    ],
    ids=str,
)
def test_whatever_a_run_keeps_is_in_its_state(name, fleet, job):
    job = {"checkpoint_every": 600, **job}
    whole = assert_same_run(make_algorithm(name, job.pop("parameters", None)), fleet, which=-1, **job)
    sums = whole.events[-1].sums
    # A worker that has moved on must not lose what it did before.
    assert sum(tally.samples for tally in sums.workers.values()) >= sums.samples


def test_marks_are_those_of_the_run_whatever_the_borders():
    """Evaluations, budget and schedule know nothing of generations, and nothing is learnt twice or left out."""
    plain, _ = kept_run(make_algorithm("sync"), eval_every=250)
    cut, _ = kept_run(make_algorithm("sync"), eval_every=250, checkpoint_every=500)
    assert len(cut.states) == 3
    evaluations = [[e.samples for e in run.events if isinstance(e, Evaluation)] for run in (plain, cut)]
    assert evaluations[0] == evaluations[1]
    updates = [[e.total_samples for e in run.events if isinstance(e, Update)] for run in (plain, cut)]
    assert updates[0] == updates[1]


@pytest.mark.parametrize("sampling", ["queue", "iid", "shards"])
@pytest.mark.parametrize("name", ["sync", "async"])
def test_for_a_worker_alone_borders_change_nothing(name, sampling):
    """Nobody to wait for: jitter, momentum, samples and statistics go on as if there were no border."""
    alone = Fleet(machine=(Machine(samples_per_s=1000, jitter=0.3),))
    job = {"task": Normed(), "samples": 400, "sampling": sampling, "eval_every": 150}
    plain, expected = kept_run(make_algorithm(name), alone, **job)
    cut, found = kept_run(make_algorithm(name), alone, checkpoint_every=100, **job)
    assert len(cut.states) == 3
    # A server's coroutine begins anew, and with it its waiting.
    lines = [
        [to_line(e) for e in run.events if e.kind != "generation" and (e.kind != "wait" or e.who == "worker-0")]
        for run in (plain, cut)
    ]
    assert lines[0] == lines[1]
    assert all(torch.equal(found.model[key], value) for key, value in expected.model.items())


def test_an_algorithm_that_ends_by_itself_ends_the_run():
    kept, outcome = kept_run(make_algorithm("wp", {"rounds": 2}), checkpoint_every=10_000, samples=50_000)
    assert outcome.error is None
    assert not kept.states


def test_a_finished_run_that_is_resumed_ends_at_once():
    kept, _ = kept_run(make_algorithm("sync"), checkpoint_every=512)
    rest, outcome = kept_run(make_algorithm("sync"), resume_from=kept.states[0], samples=512)
    assert outcome.error is None
    assert [event.kind for event in rest.events] == ["generation", "evaluation", "end"]


AVERAGES = ("local", "diloco", "stride", "cocod", "overlap-local", "wp", "simuparallel")
SUMS_AND_PUSHES = [name for name in ALGORITHMS if name not in (*AVERAGES, "backup")]


@pytest.mark.parametrize("name", SUMS_AND_PUSHES)
@pytest.mark.parametrize("sizes", [(4, 2), (2, 4)], ids=["fewer", "more"])
def test_on_a_fleet_of_another_size_every_sample_still_counts_once(name, sizes):
    parameters = {"compensation": 0} if name == "dc-async" else {}
    if name == "od":
        parameters = {"warmup": 2}
    algorithm, task = make_algorithm(name, parameters), CountedSamples()
    job = {"task": task, "optimizer": counting(), "samples": 900, "checkpoint_every": 200, "batch_size": 5}
    fleets = [
        Fleet(
            machine=(Machine(samples_per_s=1000, count=size - 1, jitter=0.3), Machine(samples_per_s=3000)),
            server=(ServerMachine(),) * (size // 2),
        )
        for size in sizes
    ]
    before, _ = kept_run(algorithm, fleets[0], **job)
    state = before.states[1]
    kept, outcome = kept_run(algorithm, fleets[1], resume_from=state, **job)
    assert outcome.error is None
    border = kept.events[0]
    assert isinstance(border, Generation)
    assert border.members == [f"worker-{rank}" for rank in range(sizes[1])]
    assert kept.events[-1].sums.samples >= 900
    for each in (*before.states, *kept.states):
        assert not miscounted(each, task.size)
