"""Machines die, come back and fall silent: the others go on, and every sample still counts once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownpace import make_algorithm
from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.events import Event, Fault, Generation, Update
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Outcome
from ownpace.engines.virtual.faults import RESTART_S, SILENCE_S
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine
from ownpace.fleet.model import FaultKind
from ownpace.testing import simulate
from ownpace.testing.counted import CountedSamples, counting, miscounted

TASK = CountedSamples()
AVERAGES = ("local", "diloco", "stride", "cocod", "overlap-local", "wp", "simuparallel")
"""Their parameters are means, in which samples cannot be counted."""
PARAMETERS: dict[str, dict[str, object]] = {
    "dc-async": {"compensation": 0},
    "od": {"warmup": 3},
    "local": {"steps": 2},
    "diloco": {"steps": 4},
    "wp": {"steps": 4},
    "simuparallel": {"steps": 4},
}


def fleet(*faults: PlannedFault, servers: int = 1, pace: float = 1000) -> Fleet:
    return Fleet(
        machine=(
            Machine(samples_per_s=4 * pace, jitter=0.1),
            Machine(samples_per_s=2 * pace),
            Machine(samples_per_s=pace, count=2, jitter=0.3),
        ),
        network=Network(bandwidth_bytes_per_s=1e6, latency_s=1e-3),
        server=(ServerMachine(),) * servers,
        fault=faults,
    )


def run(name: str, machines: Fleet, **job: Any) -> tuple[Outcome, list[Event], list[PlainState]]:
    """A run with a checkpoint now and then, so that one can see what has been learnt."""
    states: list[PlainState] = []
    given = {"task": TASK, "optimizer": counting(), "samples": 900, "checkpoint_every": 150, "batch_size": 5, **job}
    outcome, events = simulate(
        make_algorithm(name, PARAMETERS.get(name, {})), machines, on_checkpoint=states.append, **given
    )
    return outcome, events, states


def assert_sound(name: str, outcome: Outcome, events: list[Event], states: list[PlainState]) -> None:
    """The run has ended well; nothing was learnt twice, or left out, and no update counts twice."""
    assert outcome.error is None, outcome.reason
    assert all(bool(torch.isfinite(value).all()) for value in outcome.model.values())
    if name not in (*AVERAGES, "backup"):
        assert [line for state in states for line in miscounted(state, TASK.size)] == []
    version, who = 0, ""
    for event in events:
        if isinstance(event, Generation):
            assert version - event.lost == event.updates
            # What a survivor has learnt is not lost.
            assert not event.lost or (event.why == "death" and who not in (event.members or ())) or who == "server-0"
            version = event.updates
        elif isinstance(event, Update) and event.who != "server-1":
            assert event.version == version + 1
            version, who = event.version, event.who


def borders(events: list[Event]) -> list[Generation]:
    return [event for event in events if isinstance(event, Generation) and event.why != "checkpoint"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_others_go_on_and_whoever_comes_back_joins(name):
    faults = (
        PlannedFault(worker="worker-1", at_s=0.0301),
        PlannedFault(worker="worker-0", at_s=0.0502, back_at_s=0.0807),
    )
    outcome, events, states = run(name, fleet(*faults, servers=2))
    assert_sound(name, outcome, events, states)
    assert [(e.why, e.members) for e in borders(events)] == [
        ("death", ["worker-0", "worker-2", "worker-3"]),
        ("death", ["worker-2", "worker-3"]),
        ("join", ["worker-0", "worker-2", "worker-3"]),
    ]
    assert [(e.who, e.what) for e in events if isinstance(e, Fault)] == [
        ("worker-1", "kill"),
        ("worker-0", "kill"),
        ("worker-0", "back"),
    ]
    assert set(events[-1].sums.workers) == {f"worker-{number}" for number in range(4)}
    assert states[-1]["members"] == ["worker-0", "worker-2", "worker-3"]


def test_a_death_is_noticed_at_once_and_silence_after_a_while():
    """Computing takes 10 ms a batch, so the first sum after the fault shows how long the others stood still."""
    machines = Fleet(machine=(Machine(samples_per_s=500, count=3),), network=Network(latency_s=1e-3))
    kinds: dict[FaultKind, float] = {"kill": 0.0, "cut": SILENCE_S}
    for kind, pause_s in kinds.items():
        fault = PlannedFault(worker="worker-1", at_s=0.5, kind=kind)
        outcome, events, _ = run("sync", replace(machines, fault=(fault,)))
        assert outcome.error is None
        border = borders(events)[0]
        assert 0.5 + pause_s < border.t < 0.5 + pause_s + 0.05
        following = next(e for e in events if isinstance(e, Update) and e.t > border.t)
        assert following.t < border.t + 0.02
        assert following.version == border.updates + 1


@pytest.mark.parametrize("name", ["sync", "pace", "async", "grouping", "layered"])
def test_a_cut_that_is_mended_in_time_costs_time_and_nothing_else(name):
    fault = PlannedFault(worker="worker-2", at_s=0.05, kind="cut", back_at_s=0.55)
    outcome, events, states = run(name, fleet(fault, servers=2))
    assert_sound(name, outcome, events, states)
    assert not borders(events)
    computed = [e for e in events if e.kind == "compute" and e.who == "worker-2"]
    assert any(e.until > 0.55 for e in computed)
    assert not any(e.kind == "transfer" and "worker-2" in e.who and 0.055 < e.t < 0.545 for e in events)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_was_taken_for_dead_joins_anew(name):
    fault = PlannedFault(worker="worker-2", at_s=0.5, kind="cut", back_at_s=0.5 + SILENCE_S + 1)
    outcome, events, states = run(name, fleet(fault, servers=2, pace=10), samples=1200)
    assert_sound(name, outcome, events, states)
    assert [(e.why, "worker-2" in e.members) for e in borders(events)] == [("death", False), ("join", True)]
    silent = [e for e in events if e.kind == "compute" and e.who == "worker-2"]
    assert any(e.t > 0.5 + SILENCE_S + 1 for e in silent)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", ["async", "stale", "grouping", "od", "dc-async"])
def test_a_dead_server_comes_back_as_it_was_a_second_ago_at_most(name, servers):
    faults = [PlannedFault(worker="server-0", at_s=at_s, back_at_s=at_s + 0.5) for at_s in (0.3, 2.95)]
    outcome, events, states = run(name, fleet(*faults, servers=servers, pace=50), samples=1500, checkpoint_every=450)
    assert outcome.error is None
    restarts = borders(events)
    assert [e.why for e in restarts] == ["restart", "restart"]
    for at_s, restart in zip((0.3, 2.95), restarts, strict=True):
        assert restart.t == pytest.approx(at_s + 0.5)
        lately = [e for e in events if isinstance(e, Update) and e.who == "server-0" and at_s - 1 <= e.t <= at_s]
        assert 0 < restart.lost <= len(lately)
    if servers == 1:  # with two, the other one has learnt from what this one has lost
        assert_sound(name, outcome, events, states)


def test_how_a_run_ends_when_too_few_are_left():
    faults = tuple(PlannedFault(worker=f"worker-{number}", at_s=0.05 + number / 100) for number in range(3))
    outcome, events, _ = run("sync", fleet(*faults), min_workers=2)
    assert outcome.error is not None
    assert outcome.error.exit_code == 4
    assert outcome.reason == "worker-2 was killed at 0.07 s; 1 of at least 2 workers are left, too few to go on"
    assert len(borders(events)) == 2
    alone, events, states = run("sync", fleet(*faults))
    assert_sound("sync", alone, events, states)


@pytest.mark.parametrize("target", ["worker-1", "server-0"])
def test_whoever_wants_to_stop_does(target):
    outcome, events, _ = run("async", fleet(PlannedFault(worker=target, at_s=0.05)), on_failure="stop")
    assert outcome.reason == f"{target} was killed at 0.05 s; the others do not go on without it, as you asked"
    assert events[-1].t == 0.05


def test_dead_workers_are_started_again_if_that_is_wanted():
    outcome, events, states = run(
        "balanced", fleet(PlannedFault(worker="worker-0", at_s=0.05), pace=20), on_failure="restart"
    )
    assert_sound("balanced", outcome, events, states)
    assert [(e.who, e.what, e.t) for e in events if isinstance(e, Fault)] == [
        ("worker-0", "kill", 0.05),
        ("worker-0", "back", pytest.approx(0.05 + RESTART_S)),
    ]
    assert [e.why for e in borders(events)] == ["death", "join"]


def test_settings_for_a_number_of_workers_end_the_run_with_it():
    algorithm = make_algorithm("layered", {"sizes": "2,2"})
    outcome, _ = simulate(algorithm, fleet(PlannedFault(worker="worker-0", at_s=0.05)), batch_size=5)
    assert outcome.error is not None
    assert outcome.error.code == "machine-died"
    assert "cannot go on with 3 workers: sizes is '2,2'" in outcome.reason
    by_hand = make_algorithm("grouping", {"groups": "0,1/2,3"})
    outcome, _ = simulate(by_hand, fleet(PlannedFault(worker="worker-0", at_s=0.05)), batch_size=5)
    assert "cannot go on with 3 workers: groups is '0,1/2,3'" in outcome.reason


def test_the_furthest_survivor_decides_where_all_go_on():
    """The first worker is slow: when the others have made an update, it is still computing."""
    machines = Fleet(machine=tuple(Machine(samples_per_s=pace) for pace in (100, 1000, 1000)))
    for at_s in (0.13, 0.16, 0.19):
        fault = PlannedFault(worker="worker-2", at_s=at_s)
        assert_sound("pipe", *run("pipe", replace(machines, fault=(fault,)), samples=120))


def test_a_sample_that_one_server_has_learnt_from_is_not_dealt_again():
    """A worker is cut off when the first half of its gradient has arrived, and the second has not."""
    slow = replace(fleet(servers=2), network=Network(bandwidth_bytes_per_s=4e4, latency_s=1e-3))
    _, events, _ = run("async", slow)
    pushed = [e for e in events if e.kind == "transfer" and e.who[0] == "worker-3"]
    low, high = pushed[4:6]
    assert low.until < high.until
    fault = PlannedFault(worker="worker-3", at_s=(low.until + high.until) / 2, kind="cut")
    job = {"samples": None, "seconds": SILENCE_S + 2, "checkpoint_every": 100, "eval_every": 10**9, "detail": False}
    outcome, _, states = run("async", replace(slow, fault=(fault,)), **job)
    assert outcome.error is None
    wrong = miscounted(states[-1], TASK.size)
    assert len(wrong) == 5
    for line in wrong:
        layer, found, expected = (int(line.split()[place]) for place in (4, 8, 12))
        assert layer == 1
        assert found == expected - 1


def test_a_bound_on_staleness_holds_across_borders():
    faults = [PlannedFault(worker="worker-1", at_s=0.05, back_at_s=0.2), PlannedFault(worker="worker-3", at_s=0.1)]
    algorithm = make_algorithm("stale", {"staleness": 1})
    _, events = simulate(algorithm, fleet(*faults), batch_size=5, samples=1500, lr=0.01)
    assert len(borders(events)) == 3
    # Of four workers, no one begins when it is more than one batch ahead: three others have two pushes each at most.
    assert max(e.staleness for e in events if isinstance(e, Update)) <= 3 * 3


def test_only_time_is_simulated_the_same_way():
    faults = (PlannedFault(worker="worker-1", at_s=0.05, back_at_s=0.1), PlannedFault(worker="server-0", at_s=0.15))
    for name in ("pace", "async", "layered"):
        ends = []
        for timing_only in (False, True):
            job = {"batch_size": 5, "samples": 1500, "lr": 0.01, "timing_only": timing_only, "eval_every": 10**9}
            _, events = simulate(make_algorithm(name), fleet(*faults), **job)
            ends.append([(e.kind, e.t) for e in events if e.kind in ("fault", "generation", "update")])
        assert ends[0] == ends[1]


def test_a_server_that_dies_between_two_generations_loses_what_it_had_learnt():
    """All workers have ended, so that one of them can join, and the server dies before the next generation begins."""
    back = PlannedFault(worker="worker-0", at_s=0.0, back_at_s=0.2421875)
    outcome, events, states = run("grouping", fleet(back, PlannedFault(worker="server-0", at_s=0.25)), samples=600)
    assert_sound("grouping", outcome, events, states)
    assert borders(events)[-1].lost > 0


@settings(max_examples=20)
@given(data=st.data())
def test_whatever_happens_every_sample_counts_once(data):
    name = data.draw(st.sampled_from(list(ALGORITHMS)))
    times = st.floats(0, 0.3) | st.sampled_from([0.0, 0.1, 0.2])
    faults = []
    for _ in range(data.draw(st.integers(1, 4))):
        at_s, away_s = data.draw(times), data.draw(st.none() | st.floats(0.001, 0.2) | st.just(SILENCE_S + 0.05))
        kind: FaultKind = data.draw(st.sampled_from(get_args(FaultKind))) if away_s is not None else "kill"
        back_at_s = None if away_s is None else at_s + away_s
        worker = data.draw(st.sampled_from([f"worker-{number}" for number in range(4)]))
        server = data.draw(st.sampled_from([None, None, None, "server-0"]))
        kind = kind if server is None else "kill"
        faults.append(PlannedFault(worker=server or worker, at_s=at_s, kind=kind, back_at_s=back_at_s))
    outcome, events, states = run(name, fleet(*faults), samples=600, checkpoint_every=150)
    if outcome.error is None:
        assert_sound(name, outcome, events, states)
    else:
        assert outcome.error.code == "machine-died"


def test_who_is_cut_off_while_the_others_regroup_is_still_cut_off():
    slow = Network(bandwidth_bytes_per_s=1e4, latency_s=1e-3)  # regrouping takes about 80 ms
    faults = (
        PlannedFault(worker="worker-1", at_s=0.2),
        PlannedFault(worker="worker-2", at_s=0.25, kind="cut", back_at_s=1.5),
    )
    outcome, events, states = run("sync", replace(fleet(*faults), network=slow))
    assert_sound("sync", outcome, events, states)
    border = borders(events)[0]
    assert border.t > 0.25
    assert next(e.t for e in events if isinstance(e, Update) and e.t > border.t) > 1.5
