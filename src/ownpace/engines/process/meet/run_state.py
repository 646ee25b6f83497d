"""The state of a run between two generations, as plain data: put together from what nodes send, and taken apart again.

It has the same names as that of a run in virtual time, as far as there is the same to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ownpace.core.contract.values import Shard
from ownpace.core.learning.optimizer import State
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.regrouping import RegroupPlan, StateInMemory, StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, from_memory
from ownpace.engines.roster import Roster

NodeState = Mapping[str, Any]
"""What one node says of itself: see `worker_life` and `helper_life`."""


class StateCollector:
    """Takes the states of nodes as they come."""

    def __init__(self) -> None:
        self._assemblies: dict[str, StateAssembly] = {}
        self._states: dict[str, NodeState] = {}

    def take(self, name: str, control: StateOutline | StateTensor | StateInMemory, body: Tensor | None) -> None:
        """Take a node's state, or a part of it.

        Raises:
            WireError: It does not belong to any.
            SharedMemoryError: It cannot be opened.
        """
        state: PlainState | None
        if isinstance(control, StateInMemory):
            state = from_memory(control, name)
        else:
            assembly = self._assemblies.setdefault(name, StateAssembly())
            state = assembly.begin(control) if isinstance(control, StateOutline) else assembly.take(control, body)
        if state is not None:
            self._states[name] = state

    def of(self, name: str) -> NodeState | None:
        """A node's state, if it has come."""
        return self._states.get(name)

    def run_state(self, roster: Roster, giver: str, generation: int, time_s: float, tallies: PlainState) -> PlainState:
        """The state of the run; all nodes have sent theirs. Those of workers are not kept any longer."""
        workers = [worker.name for worker in roster.workers]
        states = {name: self._states.pop(name) for name in workers}
        given = states[giver]
        servers = [self._states[server.name] for server in roster.servers]
        replicas = [_joined(servers)] if servers else [_replica(given, given)]
        places = dict.fromkeys(workers, 0)
        for name in workers:
            # Where each worker has an optimizer of its own; parameters are the same for all at a border.
            if not servers and name != giver and "optimizer" in states[name]:
                places[name] = len(replicas)
                replicas.append(_replica(given, states[name]))
        return {
            "engine": "process",
            "generation": generation,
            "why": "checkpoint",
            "time_s": time_s,
            "members": workers,
            "alive": workers,
            "replicas": replicas,
            "servers": [{"counts": server["counts"]} for server in servers],
            "communicators": [],
            "workers": {
                name: {
                    "replica": places[name],
                    "counts": states[name]["counts"],
                    **{key: states[name][key] for key in ("buffers", "processor", "position", "random")},
                }
                for name in workers
            },
            "tallies": tallies,
            "kept": given["kept"],
            "left": given["left"],
            "random": [],
            "books": {"totals": (servers or [given])[0]["totals"]},
        }


def _replica(given: NodeState, state: NodeState) -> PlainState:
    return {"parameters": given["values"], "optimizer": state["optimizer"]}


def _joined(servers: Sequence[NodeState]) -> PlainState:
    """What servers hold, shard by shard, as that of the whole model."""
    memories = sorted({memory for server in servers for memory in server["optimizer"]})
    return {
        "parameters": torch.cat([server["values"] for server in servers]),
        # A memory that one server has not used yet has no entries there: optimizers begin them by themselves.
        "optimizer": {
            memory: [
                entry for server in servers for entry in server["optimizer"].get(memory, [{}] * server["num_layers"])
            ]
            for memory in memories
        },
    }


class ResumedState:
    """A checkpoint, taken apart for the nodes that go on from it. The fleet may be another one."""

    def __init__(self, state: PlainState, terms: RunTerms) -> None:
        self._state: Mapping[str, Any] = state
        self._terms = terms

    @property
    def time_s(self) -> float:
        """When it was taken, in the run's time."""
        return float(self._state["time_s"])

    @property
    def generation(self) -> int:
        """The number of the generation that begins."""
        return int(self._state["generation"])

    @property
    def samples(self) -> int:
        """In the parameters."""
        return int(self._counts["samples"])

    @property
    def version(self) -> int:
        """Of the parameters."""
        return int(self._counts["version"])

    @property
    def tallies(self) -> Mapping[str, Sequence[float]]:
        """What each worker had done: samples, seconds of computing and of loading."""
        return cast("Mapping[str, Sequence[float]]", self._state["tallies"])

    @property
    def _counts(self) -> Mapping[str, Any]:
        servers, workers = self._state["servers"], self._state["workers"]
        learners = servers or list(workers.values())
        return max((learner["counts"] for learner in learners), key=lambda counts: int(counts["version"]))

    def of_worker(self, name: str) -> PlainState:
        """What a worker of this name goes on with; what a new one does not find is not in it."""
        record: Mapping[str, Any] = self._state["workers"].get(name, {})
        replica = self._state["replicas"][record.get("replica", 0)]
        known = next(iter(self._state["workers"].values()))
        return {
            "values": replica["parameters"],
            "optimizer": replica["optimizer"],
            "kept": self._state["kept"],
            "counts": {**self._counts, "used": []},
            "totals": self._state["books"]["totals"],
            "left": self._state["left"],
            "buffers": record.get("buffers", known["buffers"]),
            "tally": self.tallies.get(name),
            **{key: record[key] for key in ("processor", "position", "random") if key in record},
        }

    def of_server(self, shard: Shard) -> PlainState:
        """What the server of this shard goes on with."""
        replica = self._state["replicas"][0]
        mine = [shard.start <= layer.start < shard.stop for layer in self._terms.layout.layers]
        states: Mapping[str, State] = replica["optimizer"]
        return {
            "values": replica["parameters"][shard.start : shard.stop].clone(),
            "optimizer": {
                memory: [entry for entry, own in zip(entries, mine, strict=True) if own]
                for memory, entries in states.items()
            },
            "counts": {**self._counts, "used": []},
            "totals": self._state["books"]["totals"],
        }


def states_to_give(
    plan: RegroupPlan, roster: Roster, resumed: ResumedState | None, collector: StateCollector
) -> Iterator[tuple[str, PlainState]]:
    """What the hub gives to whom: a checkpoint to all, or a snapshot to a server that was started again."""
    for name in plan.receivers:
        node = roster.by_name[name]
        if plan.giver == HUB:
            assert resumed is not None
            yield name, resumed.of_server(node.shard) if node.role == "server" else resumed.of_worker(name)
        elif node.role == "server":
            snapshot = collector.of(name)
            assert snapshot is not None, "a server without a snapshot is not waited for"
            yield name, snapshot
