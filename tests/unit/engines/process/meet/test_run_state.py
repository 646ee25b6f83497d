"""The state of a run, put together from what its nodes say of themselves."""

from __future__ import annotations

from typing import cast

import torch

from ownpace import make_algorithm
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.state_file import read_state, write_state
from ownpace.engines.process.meet.run_state import StateCollector
from ownpace.engines.process.talk.states import in_memory
from ownpace.engines.roster import Roster

COUNTS = {"version": 3, "samples": 24, "ahead": 0.0, "used": ()}
OWN: PlainState = {"counts": COUNTS, "left": [(24, 8)], "buffers": [], "processor": {}, "position": {}, "random": []}


def roster(num_workers: int) -> Roster:
    workers = [f"worker-{rank}" for rank in range(num_workers)]
    return Roster.plan(make_algorithm("stride"), workers, 0, Layout.of([("weight", torch.Size((6,)), False)]))


def a_worker(momentum: float, **shared: object) -> PlainState:
    """What a worker says that has an optimizer of its own."""
    return {**OWN, "optimizer": {"0": [{"momentum": torch.full((6,), momentum)}]}, **shared}


def test_parameters_are_there_once_and_each_optimizer_is(tmp_path):
    collector = StateCollector()
    states = {"worker-0": a_worker(1.0, values=torch.arange(6.0), kept={}, totals={}), "worker-1": a_worker(2.0)}
    for name, state in states.items():
        control, memory = in_memory(state, 2)
        collector.take(name, control, None)
        memory.close()
    state = collector.run_state(roster(2), "worker-0", 2, 1.0, {})
    first, second = cast("list[dict[str, object]]", state["replicas"])
    assert first["parameters"] is second["parameters"]
    write_state(tmp_path / "checkpoint.safetensors", state)
    read = read_state(tmp_path / "checkpoint.safetensors").state
    for replica, momentum in zip(read["replicas"], (1.0, 2.0), strict=True):  # type: ignore[call-overload]
        assert torch.equal(replica["parameters"], torch.arange(6.0))
        assert torch.equal(replica["optimizer"]["0"][0]["momentum"], torch.full((6,), momentum))
    assert [worker["replica"] for worker in read["workers"].values()] == [0, 1]  # type: ignore[attr-defined]


def test_what_workers_said_is_not_kept():
    collector = StateCollector()
    control, memory = in_memory(a_worker(1.0, values=torch.arange(6.0), kept={}, totals={}), 2)
    collector.take("worker-0", control, None)
    memory.close()
    assert collector.of("worker-0") is not None
    collector.run_state(roster(1), "worker-0", 2, 1.0, {})
    assert collector.of("worker-0") is None
