"""Between two generations: the state of a run, taken from the nodes of the one that has ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ownpace.engines.generators import generator_states
from ownpace.engines.progress import Progress
from ownpace.engines.virtual.awaitables import VirtualMessage
from ownpace.engines.virtual.clock import Call, Planned
from ownpace.engines.virtual.generation import VirtualGeneration
from ownpace.engines.virtual.nodes import VirtualNode, VirtualServer
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.state import (
    Counts,
    ReplicaRecord,
    RunState,
    ServerRecord,
    WorkerRecord,
    joined,
    states_of,
)
from ownpace.engines.virtual.transport import Uplink
from ownpace.engines.virtual.worker import VirtualWorker

REGROUP_LATENCIES = 4
"""Until all have agreed on who goes on, and from what."""


def let_pass(simulation: Simulation, until_s: float) -> None:
    """Let time pass, and what happens in it."""
    clock = simulation.clock

    def reached() -> None:
        clock.going_on = False

    clock.at(until_s, Call(reached))
    clock.going_on = True
    clock.go_on()


def drain(simulation: Simulation, generation: VirtualGeneration) -> None:
    """Let servers take in what has been sent to them, so that all of them have heard the same; then they end, too."""
    clock = simulation.clock
    generation.abandon()
    servers = generation.servers
    clock.drop(lambda event: isinstance(event, Planned) or _is_for(event, servers))
    last = clock.last(lambda event: _is_for(event, servers))
    if last is not None:
        let_pass(simulation, last)
    generation.close()
    clock.drop(lambda event: isinstance(event, Planned))


def _is_for(event: object, servers: Sequence[VirtualServer]) -> bool:
    return isinstance(event, VirtualMessage) and event.receiver in servers


def regroup_s(simulation: Simulation, members: Sequence[str]) -> float:
    """How long it takes until the next generation begins with these members.

    Without servers, one worker's parameters go to all others.
    """
    network, workers = simulation.job.fleet.network, simulation.job.fleet.workers
    sites = {workers[simulation.numbers[name]].machine.site for name in members}
    uplinks = [uplink for site in sites if (uplink := simulation.uplinks.get(site))] if len(sites) > 1 else []
    between_s = uplinks[0].latency_s if uplinks else 0.0
    agreeing_s = REGROUP_LATENCIES * (network.latency_s + between_s)
    if simulation.job.servers or len(members) < 2:
        return agreeing_s
    slowest = min([network.bandwidth_bytes_per_s, *(uplink.bandwidth_bytes_per_s for uplink in uplinks)])
    latencies_s = (len(members) - 1) * network.latency_s + (len(sites) - 1) * between_s
    return agreeing_s + simulation.parameter_bytes / slowest + latencies_s


def take_state(
    simulation: Simulation, generation: VirtualGeneration, before: RunState, died: Collection[str] | None = None
) -> RunState:
    """The state of a run between two generations.

    Args:
        simulation: The run's surroundings.
        generation: The one that has ended.
        before: The state that it was made of.
        died: None: its workers have all ended by themselves. Otherwise it was broken off, without these: all others
            get what the one with the most updates has.
    """
    servers = generation.servers
    # Most updates first, then by rank: the first replica is the global model, and what newcomers get.
    ordered = sorted(generation.workers, key=lambda worker: (-worker.progress.version, worker.rank))
    if died is not None:
        ordered = [worker for worker in ordered if worker.address.name not in died]
        _make_equal(simulation, servers, ordered)
    held = {} if servers else {id(worker.committed): worker.committed for worker in ordered}
    places = {key: index for index, key in enumerate(held)}
    learners: Sequence[VirtualServer | VirtualWorker] = servers or ordered[:1]
    used = simulation.accounts.used([learner.progress.version for learner in learners])
    sampler = simulation.sampler
    return RunState(
        engine="virtual",
        generation=before["generation"] + 1,
        why=before["why"],
        lost=0,
        time_s=simulation.clock.time,
        members=generation.members,
        alive=before["alive"],
        replicas=_replicas(simulation, servers, list(held.values())),
        servers=[ServerRecord(counts=_counts(s.progress), link=[s.in_free_s, s.out_free_s]) for s in servers],
        communicators=[[node.in_free_s, node.out_free_s] for node in generation.communicators],
        uplinks={site: [uplink.in_free_s, uplink.out_free_s] for site, uplink in simulation.uplinks.items()},
        workers={
            worker.address.name: _record(simulation, worker, places.get(id(worker.committed), 0)) for worker in ordered
        },
        tallies=tallies(generation, before),
        kept={name: value.clone() for name, value in ordered[0].kept.items()} if ordered else {},
        left=[] if sampler is None else sampler.left(used),
        random=generator_states(torch.device(simulation.job.device)),
        books={},
    )


def _make_equal(simulation: Simulation, servers: Sequence[VirtualServer], survivors: Sequence[VirtualWorker]) -> None:
    """Let all survivors be where the first of them is, or the servers are; what they had under way is given up."""
    now = simulation.clock.time
    for worker in survivors:
        worker.processor.abandon(now)
        if not servers:
            first = survivors[0]
            worker.begin_at(first.committed)
            progress = first.progress
            worker.progress.begin_at(progress.samples, progress.versions, progress.ahead)
    if servers:
        # Shards may have parted: what a machine sent before it was cut off may have reached some of the servers only,
        # and one of them may have come back as it was. A sample counts if any server has learnt from it.
        counts = [server.progress for server in servers]
        samples = simulation.accounts.samples([progress.version for progress in counts])
        for progress in counts:
            progress.samples = samples
    links: list[VirtualNode | Uplink] = [*servers, *survivors, *simulation.uplinks.values()]
    for link in links:
        link.in_free_s, link.out_free_s = min(link.in_free_s, now), min(link.out_free_s, now)


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
