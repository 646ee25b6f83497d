"""Nodes that are killed, stopped or started again: the others go on, and every sample counts once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.process.started import PATIENCE_S

from ownpace import make_algorithm
from ownpace.core.contract.errors import Interrupted, MachineDied
from ownpace.core.contract.events import End, Event, Fault, Generation, Update
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Job, Outcome, run_process
from ownpace.fleet import Fleet, paces
from ownpace.tasks import Digits
from ownpace.testing.counted import CountedSamples, counting, miscounted

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)
SIZE = 997
FOR_LONG = 10**9
SHORT = {"grouping": {"prerun": 2, "regroup_every": 20}, "local": {"steps": 4}}


class Scripted:
    """A run in which one thing happens after another: each when a kind of event has come."""

    def __init__(self, name: str, fleet: Fleet | None = None, **job: Any) -> None:
        self.events: list[Event] = []
        self.states: list[PlainState] = []
        self._steps: list[tuple[Callable[[Event], bool], Callable[[], None]]] = []
        settings: dict[str, Any] = {
            "task": CountedSamples(size=SIZE),
            "optimizer": counting(),
            "samples": FOR_LONG,
            "batch_size": 8,
            "checkpoint_every": 800,
            "on_checkpoint": self.states.append,
            **job,
        }
        fleet = fleet or paces(2000, 2000, 1000, jitter=0.0)
        self.job = Job(algorithm=make_algorithm(name, SHORT.get(name)), fleet=fleet, **settings)

    def when(self, condition: Callable[[Event], bool], act: Callable[[], None] = lambda: None) -> None:
        """Then do this, and go on to what comes next."""
        self._steps.append((condition, act))

    def run(self) -> Outcome:
        return run_process(self.job, self._emit, None)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if self._steps and self._steps[0][0](event):
            self._steps.pop(0)[1]()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def samples(number: int) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Update) and event.total_samples >= number


def begins(why: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Generation) and event.why == why


def send(name: str, number: signal.Signals) -> Callable[[], None]:
    """Send a signal to one of the nodes."""

    def act() -> None:
        (pid,) = (child.pid for child in multiprocessing.active_children() if child.name == name)
        assert pid is not None
        os.kill(pid, number)

    return act


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def slowly(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", ["async", *slowly("sync", "balanced", "pace", "stale", *SHORT, "layered")])
def test_a_worker_that_is_killed_is_done_without_and_joins_when_it_is_started_again(name):
    script = Scripted(name, on_failure="restart")
    script.when(samples(500), send("worker-1", signal.SIGKILL))
    script.when(begins("death"))
    script.when(begins("join"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()

    assert isinstance(outcome.error, Interrupted), outcome
    assert [fault.who for fault in script.of(Fault)] == ["worker-1"]
    members = [generation.members for generation in script.of(Generation) if generation.members is not None]
    assert members == [["worker-0", "worker-2"], ["worker-0", "worker-1", "worker-2"]]
    versions = [generation.updates for generation in script.of(Generation)]
    assert versions == sorted(versions)
    end = script.events[-1]
    assert isinstance(end, End)
    assert end.sums.replicas_identical is not False
    assert set(end.sums.workers) == {"worker-0", "worker-1", "worker-2"}
    # A worker that is away adds nothing to what the fleet could have done.
    joined = next(generation.t for generation in script.of(Generation) if generation.why == "join")
    away = (joined - script.of(Fault)[0].t) / end.sums.seconds
    assert end.sums.limit_samples_per_s == pytest.approx(5000 - 2000 * away)
    if name != "local":  # whose parameters are means: they do not count
        assert [miscounted(state, SIZE) for state in script.states] == [[]] * len(script.states)


def test_a_worker_that_falls_silent_is_done_without_and_joins_anew_when_it_is_back(monkeypatch):
    monkeypatch.setenv("OWNPACE_SILENCE_S", "2")
    script = Scripted("pace")
    script.when(samples(500), send("worker-0", signal.SIGSTOP))
    script.when(begins("death"), send("worker-0", signal.SIGCONT))
    script.when(begins("join"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()

    assert isinstance(outcome.error, Interrupted), outcome
    members = [generation.members for generation in script.of(Generation) if generation.members is not None]
    assert members == [["worker-1", "worker-2"], ["worker-0", "worker-1", "worker-2"]]
    assert [miscounted(state, SIZE) for state in script.states] == [[]] * len(script.states)


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_with_what_it_had_a_moment_before():
    script = Scripted("async")
    script.when(begins("checkpoint"))
    script.when(samples(1000), send("server-0", signal.SIGKILL))
    script.when(begins("restart"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()

    assert isinstance(outcome.error, Interrupted), outcome
    first, *_ = script.of(Generation)
    (back,) = (generation for generation in script.of(Generation) if generation.why == "restart")
    assert back.updates >= first.updates > 0
    assert miscounted(script.states[-1], SIZE) == []


def test_what_a_server_has_lost_is_not_taken_for_learnt_by_those_who_had_heard_of_it():
    """Two workers have ended at a border, and one still computes, when the server dies."""
    script = Scripted("async", paces(2000, 2000, 50, jitter=0.0))
    script.when(samples(800), send("server-0", signal.SIGKILL))
    script.when(begins("restart"))
    script.when(begins("checkpoint"), interrupt)
    outcome = script.run()

    assert isinstance(outcome.error, Interrupted), outcome
    back, border, *_ = script.of(Generation)
    assert back.why == "restart"
    assert border.samples >= 800  # not at once, again and again: they have to learn all of it once more
    assert miscounted(script.states[-1], SIZE) == []


@pytest.mark.parametrize("settings", [{"min_workers": 3}, pytest.param({"on_failure": "stop"}, marks=pytest.mark.slow)])
def test_a_run_ends_with_a_worker_that_it_is_not_to_do_without(settings):
    script = Scripted("sync", **settings)
    script.when(samples(500), send("worker-2", signal.SIGKILL))
    outcome = script.run()
    assert isinstance(outcome.error, MachineDied)
    assert str(outcome.error).startswith("worker-2 was killed by SIGKILL after ")
    assert miscounted(script.states[0], SIZE) == [] if script.states else True


@pytest.mark.parametrize("name", slowly("local", "sync", "layered"))
def test_a_resumed_run_is_the_same_run_bit_for_bit(name):
    optimizer = OptimizerSpec(name="adam", lr=0.01) if name == "sync" else OptimizerSpec(lr=0.05, momentum=0.9)
    # With draws of their own: which worker takes which part of a queue is a matter of moments.
    settings: dict[str, Any] = {"task": Digits(), "optimizer": optimizer, "sampling": "iid", "samples": 1500}
    script = Scripted(name, checkpoint_every=500, **settings)
    whole = script.run()
    assert len(script.states) >= 2, whole

    resumed = Scripted(name)
    resumed.job = replace(script.job, resume_from=script.states[0], on_checkpoint=resumed.states.append)
    again = resumed.run()
    assert (whole.reason, again.reason) == ("finished", "finished")
    assert all(torch.equal(whole.model[key], again.model[key]) for key in whole.model)
    ends = [run.events[-1] for run in (script, resumed)]
    assert ends[0].sums.updates == ends[1].sums.updates
    assert [state["generation"] for state in resumed.states] == [state["generation"] for state in script.states[1:]]


@pytest.mark.slow
def test_a_run_goes_on_on_a_fleet_of_another_size_and_every_sample_counts_once():
    script = Scripted("async", samples=1500)
    script.run()
    resumed = Scripted("async", samples=4 * SIZE, fleet=paces(3000, 1500, jitter=0.0))
    resumed.job = replace(resumed.job, resume_from=script.states[0])
    assert resumed.run().reason == "finished"
    assert min(state["left"][0][0] for state in resumed.states) > 0  # type: ignore[index]
    assert [miscounted(state, SIZE) for state in resumed.states] == [[]] * len(resumed.states)
