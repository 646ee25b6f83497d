"""Layers on their own way between processes: the same bits as in virtual time, in as many transfers."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.conformance.test_by_layer import LAYER_BYTES, Equal
from tests.process.started import PATIENCE_S
from tests.process.test_generations import SHORT, Scripted, begins, interrupt, samples, send

from ownpace import make_algorithm
from ownpace.core.contract.errors import Interrupted
from ownpace.core.contract.events import Compute, Generation, Transfer
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.fleet import Fleet, Machine, Network, ServerMachine, paces
from ownpace.testing.runs import run_on

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def test_processes_learn_the_same_as_in_virtual_time():
    """With micro-batches, so that a gradient is added to one before it; and on links that are prescribed."""
    fleet = Fleet(
        machine=(Machine(samples_per_s=200), Machine(samples_per_s=150)),
        network=Network(bandwidth_bytes_per_s=4e5, latency_s=1e-3, prescribed=True),
        server=tuple(ServerMachine(bandwidth_bytes_per_s=bandwidth) for bandwidth in (4e5, 1e5)),
    )
    job = {"task": Equal(), "samples": 96, "micro_batch": 3, "lr": 0.05, "momentum": 0.9, "sampling": "shards"}
    algorithm = make_algorithm("grouping", {"groups": "0,1", "by_layer": True})
    outcome, events = run_on("process", algorithm, fleet, **job)
    assert outcome.error is None
    expected, predicted = run_on("virtual", algorithm, fleet, **job)
    assert all(torch.equal(outcome.model[key], tensor) for key, tensor in expected.model.items())
    sent, foreseen = (
        [event.nbytes for event in each if isinstance(event, Transfer) and event.nbytes > 16]
        for each in (events, predicted)
    )
    assert foreseen == [LAYER_BYTES] * (6 * 2 * 2 * 6)
    # A worker that ends has the first layers of each server's last answer, and need not see the others.
    assert foreseen[: len(sent)] == sent
    assert len(foreseen) - 2 * 2 * 2 <= len(sent)
    # No message can have come before its link had time for it: three layers to the slow server and back.
    computed = sorted(
        (event.t, event.until) for event in events if isinstance(event, Compute) and event.who == "worker-0"
    )
    assert len(computed) == 18
    begun = [start for start, _ in computed][::3]
    assert min(later - earlier for earlier, later in pairwise(begun)) > 8 / 200 + LAYER_BYTES / 1e5


@pytest.mark.slow
def test_others_go_on_when_a_worker_is_killed_in_mid_gradient(monkeypatch):
    """At a slow pace a worker is nearly always between two of its layers; those it has sent are no message."""
    monkeypatch.setitem(SHORT, "async", {"by_layer": True})
    job = {"task": Equal(), "optimizer": OptimizerSpec(lr=0.05), "checkpoint_every": 96, "on_failure": "restart"}
    fleet = replace(paces(200, 200, 150, jitter=0.0), server=(ServerMachine(), ServerMachine()))
    script = Scripted("async", fleet, **job)
    script.when(samples(64), send("worker-1", signal.SIGKILL))
    script.when(begins("death"))
    script.when(begins("join"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()
    assert isinstance(outcome.error, Interrupted), outcome
    assert len({event.nbytes for event in script.of(Transfer)} & {LAYER_BYTES}) == 1
    versions = [generation.updates for generation in script.of(Generation)]
    assert versions == sorted(versions)
    assert all(tensor.isfinite().all() for tensor in outcome.model.values())
