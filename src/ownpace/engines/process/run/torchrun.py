"""One rank of those that torchrun started: a worker; rank 0 also keeps the hub, in a thread next to it.

Servers and communicators are processes of their own, started by a rank on the host where they are to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError, Interrupted, OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.meet.environment import Environment
from ownpace.engines.process.meet.rendezvous import Rendezvous, common_backend, meet
from ownpace.engines.process.meet.supervisor import NodeOrder
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.presence.presence import Presence
from ownpace.engines.process.presence.readmission import Readmission, is_under_way
from ownpace.engines.process.run.launch import backend_on, hub_config, make_learning, raise_bad_input
from ownpace.engines.process.run.node_main import log_to, run_worker, worker_device
from ownpace.engines.resuming import resumed


def run_rank(job: Job, environment: Environment, emit: events.Emit, on_progress: OnProgress | None) -> Outcome:
    """Take part in a job as one of torchrun's ranks."""
    check_size(job, environment)
    if job.log_folder is not None:
        log_to(job.log_folder, f"rank-{environment.rank}")
    device = worker_device(job, environment.local_rank)
    torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
    model = FlatModel(job.task, device, job.autocast)
    terms = RunTerms.of(job, model.layout, model.initial.dtype)
    resumed(job, model.layout)
    # Bad input before meeting the others: every rank finds the same, and none waits for one that is gone.
    store, rendezvous = meet(environment)
    is_first = environment.rank == 0
    hub = hub_config(job, terms, make_learning(job, device), emit, on_progress) if is_first else None
    with ExitStack() as stack:
        # Started again while the others go on: it joins them.
        is_late = not is_first and is_under_way(store)
        presence = stack.enter_context(Presence(environment, store, rendezvous, is_late=is_late))
        # Agreed on before any group is made: two ranks that chose differently would wait for each other for ever.
        able = backend_on(device, environment.local_world_size, job.algorithm)
        backend = common_backend(store, environment, able, rendezvous.timeout_s, presence.check)
        rendezvous = replace(rendezvous, backend=backend)
        session = stack.enter_context(
            Session(terms, rendezvous, store=store, hub=hub, handles_signals=True, presence=presence)
        )
        session.orders.leaves = not is_first
        hosts = [server.host for server in job.servers]
        helpers = helpers_here(session, environment, hosts, job.log_folder)
        session.start_children([replace(order, is_late=is_late) for order in helpers])
        if is_first and environment.world_size > 1 and job.on_failure != "stop":
            session.watch_returns(presence.is_back)
            session.on_begun = partial(_readmit, stack, rendezvous, environment, presence)
        lines, left = _work(session, presence, job, environment.rank, device, model)
    if hub is not None:
        return raise_bad_input(session.outcome())
    if left is not None:
        left.told = False  # rank 0 says what becomes of the run, not how far this rank was
        raise left
    for line in lines:
        emit(events.from_line(line))
    return Outcome("finished", None, {})


def _work(
    session: Session, presence: Presence, job: Job, rank: int, device: torch.device, model: FlatModel
) -> tuple[list[str], Interrupted | None]:
    """This rank's part: what it has recorded; or, where a signal lets it leave the others, how far it was by then."""
    try:
        with session.hub_running():
            return run_worker(session, job, rank, device, model), None
    except OwnpaceError as error:
        if rank == 0:
            presence.fail(error)  # the outcome has it
        elif isinstance(error, Interrupted):
            if not presence.hears_first:
                error.blame = "rank 0"  # which cannot say it
            return [], error  # the hub knows, and the other ranks need not end
        else:
            raise
    return [], None


def _readmit(stack: ExitStack, rendezvous: Rendezvous, environment: Environment, presence: Presence) -> None:
    """From now on, let ranks in that are started again."""
    back = Readmission(rendezvous, environment.world_size, lambda: presence.orders.gone)
    stack.callback(back.close)


def check_size(job: Job, environment: Environment) -> None:
    """Raise if the fleet is not what torchrun started."""
    num_workers = len(job.fleet.workers)
    if num_workers != environment.world_size:
        raise InputError(
            f"the fleet has {num_workers} workers, but torchrun started {environment.world_size} processes; start "
            f"{num_workers} (--nproc-per-node on one host), or describe them with --fleet x{environment.world_size}"
        )


def helpers_here(
    session: Session, environment: Environment, hosts: Sequence[int], log_folder: Path | None = None
) -> list[NodeOrder]:
    """The servers and communicators that this rank has to start; `hosts` are those of the servers."""
    roster = session.roster
    here = [node for node in roster.servers if _serves(node, hosts[node.index], environment)]
    here += [node for node in roster.communicators if roster.subgroup(node).members[0].index == environment.rank]
    return [
        NodeOrder(node.role, node.index, node.name, session.terms, session.rendezvous, log_folder=log_folder)
        for node in here
    ]


def _serves(node: Address, host: int, environment: Environment) -> bool:
    if host >= environment.group_world_size:
        raise InputError(
            f"{node.name} is to run on host {host}, but there are {environment.group_world_size}, counted from 0"
        )
    return environment.group_rank == host and environment.local_rank == 0
