"""One machine: the launcher starts all nodes as processes of its own, and keeps the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.learning import RealLearning
from ownpace.engines.process.hub.config import Elasticity, HubConfig
from ownpace.engines.process.hub.evaluator import Evaluator
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store
from ownpace.engines.process.meet.run_state import ResumedState
from ownpace.engines.process.meet.supervisor import NodeOrder
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.run.node_main import log_to, worker_device
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.resuming import on_checkpoint, resumed


def launch(job: Job, emit: events.Emit, on_progress: OnProgress | None) -> Outcome:
    """Run a job on processes of this machine."""
    store, port = local_store()
    if job.log_folder is not None:
        log_to(job.log_folder, "hub")
    with _one_thread():
        # The model is built here before any child is: bad input is then raised where the user called.
        learning = make_learning(job, worker_device(job, 0))
        terms = RunTerms.of(job, learning.layout, learning.initial.dtype)
        backend = backend_on(torch.device(job.device), len(terms.workers), job.algorithm)
        rendezvous = Rendezvous(LOOPBACK, port, "ownpace", RunKey.new().secret, LOOPBACK, backend)
        hub = hub_config(job, terms, learning, emit, on_progress)
        with Session(terms, rendezvous, hub=hub, handles_signals=True) as session:
            session.start_children([_order(job, session, node.name) for node in session.roster.nodes], fork=True)
            session.keep_hub()
        del store  # its server lives until here: children may look others up until they end
    return raise_bad_input(session.outcome())


def _order(job: Job, session: Session, name: str) -> NodeOrder:
    node = session.roster.by_name[name]
    # What only the hub needs stays here: it may be large, or not fit for another process.
    spare = replace(job, on_checkpoint=None, resume_from=None, last_words=None)
    return NodeOrder(
        node.role,
        node.index,
        name,
        session.terms,
        session.rendezvous,
        job=spare if node.role == "worker" else None,
        log_folder=job.log_folder,
        last_words=job.last_words,
    )


def make_learning(job: Job, device: torch.device) -> RealLearning:
    """The model with its initial weights; the caller's random numbers are not touched."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
        return RealLearning(job.task, device, job.autocast)


def hub_config(
    job: Job, terms: RunTerms, learning: RealLearning, emit: events.Emit, on_progress: OnProgress | None
) -> HubConfig:
    """What the hub must know of a job."""
    num_shards = max(1, terms.num_servers)
    every, after = job.evaluations_every, job.evaluate == "after"
    state = resumed(job, learning.layout)
    micro_batch = job.micro_batch or job.batch_size
    return HubConfig(
        header=job.header("process", learning.layout.size, learning.initial.nbytes, terms.roster().names()),
        layers=[layer.name for layer in terms.layers],
        emit=emit,
        on_progress=on_progress,
        limit_samples_per_s=(
            (lambda until_s, away: job.fleet.limit_samples_per_s(until_s, micro_batch, away))
            if job.fleet.paced
            else None
        ),
        goal=job.goal,
        stop_at_target=job.stop_at_target,
        make_evaluator=lambda: Evaluator(learning, num_shards, every, after=after),
        elasticity=Elasticity(
            terms,
            job.on_failure,
            job.min_workers,
            job.max_workers,
            on_checkpoint(job, learning.layout),
            None if state is None else ResumedState(state, terms),
        ),
    )


def backend_on(device: torch.device, workers_here: int, algorithm: Algorithm) -> str:
    """NCCL where every worker of this host has a GPU of its own, else gloo. Communicators have no GPUs."""
    own_gpus = device.type == "cuda" and torch.cuda.device_count() >= workers_here
    return "nccl" if own_gpus and not algorithm.has_communicators else "gloo"


def raise_bad_input(outcome: Outcome) -> Outcome:
    """Bad input raises; all other errors of a run are in its outcome."""
    if isinstance(outcome.error, InputError):
        raise outcome.error
    return outcome


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Evaluating must not take the cores from training."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
