"""A failure anywhere is told as what it is, and the records have an end."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.process.failing import FullGpu, Selfish
from tests.process.started import PATIENCE_S

from ownpace import make_algorithm
from ownpace.core.contract.errors import InputError, NodeFailed, ReplicasDiffer
from ownpace.core.contract.events import End, Event
from ownpace.engines import Job, run_process
from ownpace.fleet import PlannedFault, paces
from ownpace.tasks import Quadratic
from ownpace.testing import run_on

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def test_a_model_that_one_worker_cannot_build_is_named_with_the_reason():
    outcome, events = run_on("process", make_algorithm("sync"), paces(1000, 1000, jitter=0.0), task=FullGpu())
    assert isinstance(outcome.error, NodeFailed)
    assert str(outcome.error) == "worker-1: MemoryError: this GPU is full"
    assert outcome.error.blame == "worker-1"
    assert isinstance(events[-1], End)
    assert events[-1].code == "node-failed"


def test_replicas_that_part_end_the_run_within_a_few_updates():
    outcome, events = run_on("process", Selfish(), paces(4000, 2000, 4000, jitter=0.0), samples=10**9, lr=0.01)
    assert isinstance(outcome.error, ReplicasDiffer)
    assert re.match(
        "the parameters differ: layer '.*' on rank 2 from that of ranks 0, 1, since some update after 2, update 4 at "
        "the latest; only",
        str(outcome.error),
    )
    end = events[-1]
    assert isinstance(end, End)
    assert (end.code, end.reason, end.sums.replicas_identical) == ("replicas-differ", str(outcome.error), False)


def test_an_error_in_a_users_own_callback_is_raised_and_the_records_have_an_end():
    def broken(report: object) -> None:
        raise ZeroDivisionError("my own mistake")

    events: list[Event] = []
    job = Job(algorithm=make_algorithm("sync"), task=Quadratic(), fleet=paces(1000, jitter=0.0), samples=10**9)
    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        run_process(job, events.append, broken)
    assert [isinstance(event, End) for event in events].count(True) == 1
    assert isinstance(events[-1], End)


def test_of_a_fleets_faults_those_are_named_that_processes_cannot_play():
    kill = PlannedFault(worker="worker-0", at_s=1)
    pause = PlannedFault(worker="worker-0", at_s=1, kind="pause", back_at_s=2)
    fleet = replace(paces(1000, jitter=0.0), fault=(pause, kill))
    events: list[Event] = []
    job = Job(algorithm=make_algorithm("sync"), task=Quadratic(), fleet=fleet, samples=100)
    with pytest.raises(InputError, match="faults of the kind kill, which only the engine 'virtual' plays"):
        run_process(job, events.append)
    assert events == []
