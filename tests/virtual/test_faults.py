"""Machines die, come back and fall silent: the others go on, and every sample still counts once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ownpace import make_algorithm
from ownpace.algorithms import ALGORITHMS
from ownpace.core.contract.events import Event, Fault, Generation, Update
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Outcome
from ownpace.fleet import Fleet, Machine, Network, PlannedFault, ServerMachine
from ownpace.testing import simulate
from ownpace.testing.counted import CountedSamples, counting, miscounted

TASK = CountedSamples()
AVERAGES = ("local", "diloco", "wp", "simuparallel")
"""Their parameters are means, in which samples cannot be counted."""
PARAMETERS: dict[str, dict[str, object]] = {
    "dc-async": {"compensation": 0},
    "od": {"warmup": 3},
    "local": {"steps": 2},
    "diloco": {"steps": 4},
    "wp": {"steps": 4},
    "simuparallel": {"steps": 4},
}


def fleet(*faults: PlannedFault, servers: int = 1) -> Fleet:
    return Fleet(
        machine=(
            Machine(samples_per_s=4000, jitter=0.1),
            Machine(samples_per_s=2000),
            Machine(samples_per_s=1000, count=2, jitter=0.3),
        ),
        network=Network(bandwidth_bytes_per_s=1e6, latency_s=1e-3),
        server=(ServerMachine(),) * servers,
        fault=faults,
    )


def run(name: str, machines: Fleet, **job: Any) -> tuple[Outcome, list[Event], list[PlainState]]:
    """A run with a checkpoint now and then, so that one can see what has been learnt."""
    states: list[PlainState] = []
    given = {"task": TASK, "optimizer": counting(), "samples": 3000, "checkpoint_every": 300, "batch_size": 5, **job}
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
    version = 0
    for event in events:
        if isinstance(event, Generation):
            assert version - event.lost <= event.updates <= version
            version = event.updates
        elif isinstance(event, Update) and event.who != "server-1":
            assert event.version == version + 1
            version = event.version


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
