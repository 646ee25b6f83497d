"""A run between two of its generations, as plain data: what a checkpoint holds, and what the next one begins with.

Nothing is in flight then, so this is all there is: whoever makes nodes of it goes on where the others stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

from ownpace.core.contract.values import Shard
from ownpace.core.learning.claims import Places
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import FlatOptimizer, State, clone
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.virtual.replica import Replica

OptimizerStates = dict[str, State]
"""By the number of the memory: for each layer, what the optimizer keeps."""


class ReplicaRecord(TypedDict):
    """Parameters, and the optimizer state that belongs to them."""

    parameters: Tensor
    optimizer: OptimizerStates


class Counts(TypedDict):
    """How far a learner is."""

    samples: int
    version: int
    ahead: float


class ServerRecord(TypedDict):
    """What belongs to one server, besides its part of the parameters."""

    counts: Counts
    link: list[float]


class WorkerRecord(TypedDict):
    """What belongs to one worker, by its name."""

    replica: int
    """Which of the replicas it holds."""
    counts: Counts
    buffers: list[Tensor]
    processor: PlainState
    position: PlainState
    """Where it is in data of its own."""
    link: list[float]


class RunState(TypedDict):
    """A run."""

    engine: str
    generation: int
    """The number of the one that begins."""
    why: str
    lost: int
    """Recorded updates that died with the one before."""
    time_s: float
    members: list[str]
    """The workers of the generation that has ended."""
    alive: list[str]
    """All workers that are there, whether they are members or wait to join."""
    replicas: list[ReplicaRecord]
    """The first is the global model. None where only time is simulated."""
    servers: list[ServerRecord]
    communicators: list[list[float]]
    """Their links."""
    uplinks: dict[str, list[float]]
    """Of sites, by their names."""
    workers: dict[str, WorkerRecord]
    tallies: dict[str, list[float]]
    """What each worker has done so far, those that are gone included."""
    kept: dict[str, Tensor]
    left: list[Places]
    """The places of the shared order of samples that are still to be dealt."""
    random: list[Tensor]
    """Torch's global generators."""
    books: PlainState


def first_state(names: Sequence[str]) -> RunState:
    """A run that has not begun."""
    return RunState(
        engine="virtual",
        generation=1,
        why="start",
        lost=0,
        time_s=0.0,
        members=[],
        alive=list(names),
        replicas=[],
        servers=[],
        communicators=[],
        uplinks={},
        workers={},
        tallies={},
        kept={},
        left=[],
        random=[],
        books={},
    )


def progress_of(state: RunState) -> tuple[int, int]:
    """How many updates made the global model, of how many samples."""
    learners = [server["counts"] for server in state["servers"]] or [w["counts"] for w in state["workers"].values()]
    counts = learners[0]
    return counts["version"], counts["samples"]


def states_of(replica: Replica, optimizer: FlatOptimizer) -> OptimizerStates:
    """A replica's optimizer states by layer, sharing nothing with it."""
    return {str(memory): optimizer.layer_states(state) for memory, state in replica.states.items()}


def joined(parts: Sequence[tuple[OptimizerStates, FlatOptimizer]]) -> OptimizerStates:
    """The states of several shards as those of the whole vector."""
    memories = sorted({memory for states, _ in parts for memory in states})
    return {
        memory: [
            entry
            for states, optimizer in parts
            for entry in (states[memory] if memory in states else optimizer.layer_states(optimizer.initial_state()))
        ]
        for memory in memories
    }


def replica_of(record: ReplicaRecord, layout: Layout, shard: Shard, optimizer: FlatOptimizer) -> Replica:
    """One shard of a record as a replica, sharing nothing that a step may overwrite."""
    mine = [shard.start <= layer.start < shard.stop for layer in layout.layers]
    states = {
        int(memory): optimizer.of_layers(clone([entry for entry, own in zip(entries, mine, strict=True) if own]))
        for memory, entries in record["optimizer"].items()
    }
    values = record["parameters"][shard.start : shard.stop]
    return Replica(values, states)
