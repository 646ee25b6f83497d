"""Between two generations: the state of a run, taken from the nodes of the one that has ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.engines.progress import Progress
from ownpace.engines.virtual.generation import VirtualGeneration
from ownpace.engines.virtual.nodes import VirtualServer, VirtualWorker
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.state import (
    Counts,
    ReplicaRecord,
    RunState,
    ServerRecord,
    WorkerRecord,
    joined,
    random_states,
    states_of,
)


def take_state(simulation: Simulation, generation: VirtualGeneration, before: RunState) -> RunState:
    """The state of a run whose workers have all ended by themselves."""
    workers, servers = generation.workers, generation.servers
    # Most updates first, then by rank: the first replica is the global model, and what newcomers get.
    ordered = sorted(workers, key=lambda worker: (-worker.progress.version, worker.rank))
    held: dict[int, Replica] = {} if servers else {id(worker.committed): worker.committed for worker in ordered}
    places = {key: index for index, key in enumerate(held)}
    learners: Sequence[VirtualServer | VirtualWorker] = servers or ordered[:1]
    used = simulation.accounts.used([learner.progress.version for learner in learners])
    sampler = simulation.sampler
    return RunState(
        engine="virtual",
        generation=before["generation"] + 1,
        why=before["why"],
        time_s=simulation.clock.time,
        members=generation.members,
        alive=before["alive"],
        replicas=_replicas(simulation, servers, list(held.values())),
        servers=[ServerRecord(counts=_counts(s.progress), link=[s.in_free_s, s.out_free_s]) for s in servers],
        communicators=[[node.in_free_s, node.out_free_s] for node in generation.communicators],
        workers={
            worker.address.name: _record(simulation, worker, places.get(id(worker.committed), 0)) for worker in ordered
        },
        tallies=tallies(generation, before),
        kept={name: value.clone() for name, value in ordered[0].kept.items()},
        left=[] if sampler is None else sampler.left(used),
        random=random_states(torch.device(simulation.job.device)),
        books={},
    )


def tallies(generation: VirtualGeneration, before: RunState) -> dict[str, list[float]]:
    """What each worker has done so far."""
    now = {
        worker.address.name: [worker.computed_samples, worker.compute_s, worker.load_s] for worker in generation.workers
    }
    return {**before["tallies"], **now}


def _record(simulation: Simulation, worker: VirtualWorker, replica: int) -> WorkerRecord:
    sampler = simulation.sampler
    return WorkerRecord(
        replica=replica,
        counts=_counts(worker.progress),
        buffers=[buffer.clone() for buffer in worker.buffers],
        processor=worker.processor.state(),
        position={} if sampler is None else sampler.position(worker.rank),
        link=[worker.in_free_s, worker.out_free_s],
    )


def _counts(progress: Progress) -> Counts:
    return Counts(samples=progress.samples, version=progress.version, ahead=progress.ahead)


def _replicas(simulation: Simulation, servers: Sequence[VirtualServer], held: Sequence[Replica]) -> list[ReplicaRecord]:
    if not simulation.real:
        return []
    if not servers:
        optimizer = simulation.optimizer(simulation.roster.workers.members[0].shard)
        return [_replica(replica.values, states_of(replica, optimizer)) for replica in held]
    optimizers = [simulation.optimizer(server.address.shard) for server in servers]
    parts = [
        (states_of(server.committed, optimizer), optimizer)
        for server, optimizer in zip(servers, optimizers, strict=True)
    ]
    return [_replica(torch.cat([server.parameters.values for server in servers]), joined(parts))]


def _replica(values: Tensor, optimizer: dict[str, list[dict[str, object]]]) -> ReplicaRecord:
    return ReplicaRecord(parameters=values, optimizer=optimizer)
