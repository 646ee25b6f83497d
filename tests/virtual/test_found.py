"""What torture has found in the engine, each as small as it could be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from ownpace import make_algorithm
from ownpace.core.contract.events import End, Event, Generation, Update
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.virtual.state import ServerRecord
from ownpace.fleet import Between, Fleet, Machine, Network, PlannedFault, ServerMachine
from ownpace.testing import simulate
from ownpace.testing.torture.tasks import Ballots

SPREAD = ((10.0, "near", "a"), (4.0, "middle", "a"), (10.0, "far", "b"))
"""Paces, names and sites: who comes second at a server depends on where that is."""


def fleet(*faults: PlannedFault, workers: int = 2, servers: int = 1) -> Fleet:
    """Every worker computes ten samples a second, and links take no time."""
    return Fleet(
        machine=(Machine(samples_per_s=10, count=workers),),
        network=Network(bandwidth_bytes_per_s=1e9, latency_s=0.0),
        server=(ServerMachine(),) * servers,
        fault=faults,
    )


def run(name: str, machines: Fleet, **job: Any) -> tuple[End, list[Event], list[PlainState]]:
    states: list[PlainState] = []
    outcome, events = simulate(make_algorithm(name), machines, on_checkpoint=states.append, batch_size=2, **job)
    assert outcome.error is None
    end = events[-1]
    assert isinstance(end, End)
    return end, events, states


def generations(events: list[Event]) -> list[Generation]:
    return [event for event in events if isinstance(event, Generation)]


def test_sums_do_not_count_what_died_with_a_server_before_the_time_was_up():
    dies = PlannedFault(worker="server-0", at_s=1.7, back_at_s=5)
    end, events, _ = run("async", fleet(dies), seconds=2)
    (after,) = generations(events)
    assert after.lost > 0
    assert (end.sums.updates, end.sums.samples) == (after.updates, after.samples)


def test_a_run_whose_budget_was_spent_learns_again_what_died_with_a_server():
    """The budget is spent at 2.9 s, and the slow worker's last batch is still under way when the server dies."""
    slow = Machine(samples_per_s=0.7, name="slow")
    machines = replace(fleet(PlannedFault(worker="server-0", at_s=2.95)), machine=(Machine(samples_per_s=10), slow))
    end, events, _ = run("async", machines, samples=29)
    (after,) = generations(events)
    assert after.t > 2.95
    assert after.samples < 29
    assert end.sums.samples >= 29
    assert end.sums.seconds > after.t
    # Numbered without a gap from there on.
    again = [event.version for event in events[events.index(after) :] if isinstance(event, Update)]
    assert again == list(range(after.updates + 1, after.updates + 1 + len(again)))


@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_run_is_resumed_on_a_machine_that_was_dead_by_then(name):
    dies = PlannedFault(worker="worker-0", at_s=0.5)
    _, _, states = run(name, fleet(dies), samples=80, checkpoint_every=40)
    assert states[0]["alive"] == ["worker-1"]
    end, events, _ = run(name, fleet(workers=1), samples=80, resume_from=states[0])
    assert end.sums.samples >= 80
    assert generations(events)[0].members == ["worker-0"]


def test_a_link_that_was_cut_before_a_checkpoint_is_so_in_the_run_that_goes_on_from_it():
    """A worker is cut off while it is being started again; the checkpoint is the border at which it joins."""
    dies = PlannedFault(worker="worker-0", at_s=0.5, back_at_s=1.0)
    machines = fleet(dies, PlannedFault(worker="worker-0", at_s=0.9, kind="cut"))
    job: dict[str, Any] = {"samples": 60, "checkpoint_every": 14}
    _, events, states = run("sync", machines, **job)
    assert states[0]["why"] == "join"
    _, again, _ = run("sync", machines, **job, resume_from=states[0])
    assert again == events[-len(again) :]


def test_a_run_that_ends_early_while_a_server_is_gone_counts_what_its_model_holds():
    """The only worker dies before the server is back."""
    dies = PlannedFault(worker="server-0", at_s=3.7, back_at_s=30)
    machines = fleet(dies, PlannedFault(worker="worker-0", at_s=4.0, kind="kill"), workers=1)
    outcome, events = simulate(make_algorithm("async"), machines, task=Ballots(num_samples=99), batch_size=2, lr=1.0)
    assert outcome.error is not None
    assert outcome.error.code == "machine-died"
    end = events[-1]
    assert isinstance(end, End)
    made = [event for event in events if isinstance(event, Update)]
    in_time = [event for event in made if event.t <= 3.0]  # the latest snapshot
    assert end.sums.updates == len(in_time) < len(made)
    assert end.sums.samples == 2 * len(in_time)
    assert float(next(iter(outcome.model.values()))[-1]) == -len(in_time)


def test_without_gradients_servers_that_made_an_update_of_different_workers_know_it_too():
    """Of three workers an update waits for two: another pair at each server, so all three count when one dies."""
    paces = [Machine(samples_per_s=pace, name=name, site=site) for pace, name, site in SPREAD]
    network = Network(bandwidth_bytes_per_s=1e9, latency_s=0.0, between=Between(latency_s=1.0))
    machines = Fleet(
        machine=tuple(paces),
        network=network,
        server=(ServerMachine(site="a"), ServerMachine(site="b")),
        fault=(PlannedFault(worker="near-0", at_s=1.9),),
    )
    job: dict[str, Any] = {"batch_size": 2, "samples": 30, "task": Ballots(num_samples=99)}
    both = [
        simulate(make_algorithm("backup", {"backups": 1}), machines, **job, timing_only=timing_only)[1]
        for timing_only in (False, True)
    ]
    (first, second) = (generations(events)[0] for events in both)
    assert first.samples == 6
    assert first == second
    made = [[event for event in events if isinstance(event, Update)] for events in both]
    assert made[0] == made[1]


def test_a_run_that_goes_on_with_fewer_servers_counts_from_the_furthest_of_them():
    """Server 0 is killed, and has made fewer updates than server 1 from then on; the next has made as many as that."""
    dies = PlannedFault(worker="server-0", at_s=1.7, back_at_s=2.0)
    job: dict[str, Any] = {"task": Ballots(num_samples=99), "lr": 1.0}
    _, _, states = run("async", fleet(dies, servers=2), samples=80, checkpoint_every=60, **job)
    versions = [record["counts"]["version"] for record in cast(list[ServerRecord], states[-1]["servers"])]
    assert versions[0] < versions[1]
    _, events, _ = run("async", fleet(), samples=80, resume_from=states[-1], **job)
    assert generations(events)[0].updates == versions[1]
    made = [event.version for event in events if isinstance(event, Update)]
    assert made == list(range(versions[1] + 1, versions[1] + 1 + len(made)))
