"""Updates that are made as the layers of a sum arrive: the same bits as those of whole sums."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.process.deep import Deep
from tests.process.schedules import ByLayer, Unequal
from tests.process.started import PATIENCE_S
from tests.process.test_generations import SHORT, Scripted, begins, interrupt, samples, send
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import Interrupted
from ownpace.core.contract.events import Generation, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, full_speed, paces
from ownpace.testing.runs import run_on

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
Model = Mapping[str, Tensor]
JOB: dict[str, Any] = {"task": Deep(), "samples": 96, "micro_batch": 5, "sampling": "shards"}
SGD = OptimizerSpec(lr=0.05, momentum=0.9, weight_decay=0.01)


def learnt(optimizer: OptimizerSpec, algorithm: Algorithm, fleet: Fleet) -> Model:
    """What is learnt on processes."""
    outcome, events = run_on("process", algorithm, fleet, eval_every=30, optimizer=optimizer, **JOB)
    assert outcome.error is None
    made = [(event.total_samples, event.staleness) for event in events if isinstance(event, Update)]
    assert made == [(16 * number, 0) for number in range(1, 7)]
    return outcome.model


def assert_same(one: Model, other: Model) -> None:
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())


def test_the_bits_are_those_of_whole_sums():
    """With micro-batches and evaluations on the way; at a prescribed pace, at full speed, and in virtual time."""
    slow = paces(200, 150, jitter=0.0)
    expected = learnt(SGD, Unequal(sizes=(8, 8)), full_speed(2))
    for fleet in (slow, full_speed(2)):
        assert_same(learnt(SGD, ByLayer(), fleet), expected)
    assert_same(run_on("virtual", make_algorithm("sync"), slow, optimizer=SGD, **JOB)[0].model, expected)


def test_clipping_waits_for_the_whole_gradient():
    clipped = OptimizerSpec(name="adamw", lr=0.001, clip_norm=0.5)
    model = learnt(clipped, ByLayer(expected=False), full_speed(2))
    assert_same(run_on("virtual", make_algorithm("sync"), paces(2, 1), optimizer=clipped, **JOB)[0].model, model)


@pytest.mark.slow
def test_an_update_of_which_layers_never_come_has_not_been_made(monkeypatch):
    """At a slow pace a worker is often between two of its layers when another is killed."""
    monkeypatch.setitem(SHORT, "sync", {})
    job = {"task": Deep(), "optimizer": SGD, "checkpoint_every": 96, "on_failure": "restart"}
    script = Scripted("sync", paces(200, 200, 150, jitter=0.0), **job)
    script.when(samples(64), send("worker-1", signal.SIGKILL))
    script.when(begins("death"))
    script.when(begins("join"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()
    assert isinstance(outcome.error, Interrupted), outcome
    versions = [generation.updates for generation in script.of(Generation)]
    assert versions == sorted(versions)
    assert all(tensor.isfinite().all() for tensor in outcome.model.values())
