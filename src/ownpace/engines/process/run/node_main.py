"""What one node's process does, from its first word to its last, whatever its role and whatever started it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path

import torch

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.values import Parameters
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.optimizer import Build, FlatOptimizer
from ownpace.core.learning.sampling import make_sampler
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.process.node.computer import GradientComputer
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import TICK_S, NewGeneration, Released
from ownpace.engines.process.node.nodes import ProcessNode, ProcessServer, ProcessWorker
from ownpace.engines.process.node.optimizer_copy import OptimizerCopy
from ownpace.engines.process.node.parameters import FlatParameters
from ownpace.engines.process.node.task_gradients import TaskGradients
from ownpace.engines.process.run.log_file import LogFile
from ownpace.engines.process.run.session import Session
from ownpace.engines.process.run.supervisor import NodeOrder, die_with_parent, read_order
from ownpace.engines.process.talk.control import Ended, Goodbye
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.processor import Processor


def be_forked_node(order: NodeOrder, lifeline: PipeEnd) -> None:
    """The whole life of a child that the launcher forked."""
    _be_node(order, lifeline.recv_bytes)


def be_spawned_node() -> None:
    """The whole life of a child that a rank of torchrun's started."""
    _ignore_signals()  # before its order is read, which imports what the order needs: Ctrl-C may come meanwhile
    _be_node(read_order(sys.stdin.buffer), partial(os.read, 0, 4096))


def _be_node(order: NodeOrder, lifeline: Callable[[], object]) -> None:
    _ignore_signals()
    # Before anything that may block: a parent that dies now must not leave this process behind.
    die_with_parent(lifeline)
    if order.log_folder is not None:
        log_to(order.log_folder, order.name)
    try:
        with Session(order.terms, order.rendezvous, spans_hosts=order.spans_hosts) as session:
            if order.job is None:
                run_helper(session, order)
                return
            if "OMP_NUM_THREADS" not in os.environ:
                # Torch would take all cores in every process; each worker gets its part of them.
                torch.set_num_threads(max(1, (os.cpu_count() or 1) // len(order.terms.workers)))
            run_worker(session, order.job, order.index, worker_device(order.job, order.index))
    except OwnpaceError as error:
        sys.exit(error.exit_code)  # the hub has heard of it, and reports it once
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def _ignore_signals() -> None:
    """Ctrl-C reaches the whole process group, but how a run ends is the parent's to say."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def log_to(folder: Path, name: str) -> None:
    """Write this process's log into a file of the run folder."""
    handler = LogFile(folder, name)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ownpace")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


def run_helper(session: Session, order: NodeOrder) -> None:
    """Be a server or a communicator until the last worker has ended."""
    # A server shares its host with workers: a step on all cores would slow down their gradients.
    torch.set_num_threads(1)
    keep_large_blocks()
    terms, roster, is_server = session.terms, session.roster, order.role == "server"
    address = (roster.servers if is_server else roster.communicators).members[order.index]
    like = torch.empty(0, dtype=terms.dtype)
    with ExitStack() as stack:
        connection, context = stack.enter_context(session.connected(address, like, is_evaluated=is_server))
        node = _server(context) if is_server else ProcessNode(context)
        stack.callback(node.sums.close)
        stack.enter_context(connection.complaining())
        connection.start_together(node, spans_hosts=session.spans_hosts)
        with contextlib.suppress(Released):
            _serve(terms.algorithm, node)
        node.restarts = False
        if isinstance(node, ProcessServer):
            node.learner.show(final=True)
        end(node)


def _server(context: NodeContext) -> ProcessServer:
    """A server, with the parameters that rank 0 sends."""
    terms, shard = context.terms, context.address.shard
    build: Build = terms.optimizer.build
    places: list[int] | None = None
    if isinstance(terms.optimizer, OptimizerCopy):
        build, places = terms.optimizer.for_shard(terms.layers, shard)
    values = torch.zeros(shard.stop - shard.start, dtype=terms.dtype)
    node = ProcessServer(context, FlatParameters(values, FlatOptimizer(context.layout, shard, values, build), places))
    # The first message of all is rank 0's parameters: workers push only after the start, which waits for this node.
    first = node.inbox.receive()
    while not first.done:
        node.inbox.look(TICK_S)
    assert first.message is not None
    values.copy_(first.message.parameters.values)
    return node


def _serve(algorithm: Algorithm, node: ProcessNode) -> None:
    """Run the algorithm's part of a helper, from its beginning with each generation, until the node is released.

    Raises:
        Released: The last worker has ended.
    """
    # Only from here on: before the start, a message of a newer generation waits, as it does at a worker.
    node.restarts = True
    while True:
        if node.inbox.newest > node.inbox.generation:
            node.begin(node.inbox.newest)
        try:
            drive(algorithm.server(node) if isinstance(node, ProcessServer) else algorithm.communicator(node))
            while True:  # the coroutine has returned: its part in this generation is over
                node.inbox.tick()
                node.inbox.look(TICK_S)
        except NewGeneration:
            continue


def drive(coroutine: Coroutine[object, None, None]) -> None:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("an algorithm awaited something that is not from ownpace; it may await only what `me` hands out")


def run_worker(
    session: Session, job: Job, rank: int, device: torch.device, model: FlatModel | None = None
) -> list[str]:
    """Be a worker from the first sample to the last.

    Returns:
        The lines of the run's first, evaluating and last records, which every worker gets at the end.
    """
    keep_large_blocks()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    address = session.roster.workers.members[rank]
    is_evaluated = rank == 0 and not len(session.roster.servers)
    like = torch.empty(0, dtype=session.terms.dtype, device=device)
    with ExitStack() as stack:
        # Connected before the model is built: if that fails, on a GPU that is full, say, the hub is told why.
        connection, context = stack.enter_context(session.connected(address, like, is_evaluated=is_evaluated))
        if model is None:
            torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
            model = FlatModel(job.task, device, job.autocast)
        counters = Counters(
            connection.store, session.rendezvous.secret, first=rank == 0, spans_hosts=session.spans_hosts
        )
        stack.callback(counters.close)
        node, source = _task_worker(context, job, model, counters)
        stack.callback(node.sums.close)
        stack.enter_context(connection.complaining())
        task = job.task.__class__.__name__
        # Refused before anything is exchanged: tensors of different models would not even have the same size.
        connection.introduce(node, context.terms.fingerprint(task=task, seed=job.seed))
        share_parameters(node)
        # Before time begins, or what is made on first use would be measured as this worker's pace.
        source.warm_up()
        # After warming up, which draws random numbers, too: dropout is the same whatever was warmed up.
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL, rank))
        connection.start_together(node, spans_hosts=session.spans_hosts)
        counters.forget_path()  # all workers have opened the file: they have all said that they are prepared
        drive(job.algorithm.worker(node))
        return end_worker(node)


def _task_worker(
    context: NodeContext, job: Job, model: FlatModel, counters: Counters
) -> tuple[ProcessWorker, TaskGradients]:
    rank, device = context.address.index, context.like.device
    model.module.train()
    train = job.task.train_samples()
    optimizer = FlatOptimizer(model.layout, context.address.shard, model.initial, job.optimizer.build)
    micro_batch = job.micro_batch or job.batch_size
    worker = ProcessWorker(context, FlatParameters(model.initial, optimizer), job.batch_size, micro_batch)
    machine = job.fleet.workers[rank]
    worker.source = source = TaskGradients(
        worker,
        GradientComputer(model, train.to(device), device, graphs=job.cuda_graphs),
        make_sampler(job.sampling, len(train), len(worker.workers), job.seed, counters.taking(0)),
        None if machine.machine.samples_per_s is None else Processor(machine, rank, job.seed),
    )
    return worker, source


def share_parameters(worker: ProcessWorker) -> None:
    """Begin with the parameters of rank 0, on all workers and servers."""
    values = worker.learner.held.values
    # Workers before servers: a server that has its parameters says that it is prepared, and the last one starts time.
    collectives = worker.sums.of(worker.workers)
    worker.sums.wait(collectives.channels.broadcast(values, 0), "workers")
    if worker.rank == 0:
        for server in worker.servers:
            shard = server.shard
            worker.send(server, Parameters(values[shard.start : shard.stop].clone(), 0, shard))


def end_worker(worker: ProcessWorker) -> list[str]:
    """Tell the hub how this worker ended, and wait until all nodes have."""
    # The last gradient may still be asked for and not computed; the checksums must be of what is shown.
    worker.finish_asked()
    worker.learner.show(final=True)
    return end(worker, worker.learner.last_checksums())


def end(node: ProcessNode, checksums: Sequence[int] = ()) -> list[str]:
    """Say that this node has ended, and wait until all have; returns the records that sum up the run, as lines."""
    # The last report before the word that this node has ended: with the last node's, the hub sums up.
    node.context.reporter.report()
    node.context.reporter.say(Ended(list(checksums)))
    goodbye, _ = node.inbox.wait_for(Goodbye)
    return goodbye.events


def worker_device(job: Job, local_rank: int) -> torch.device:
    """Where a worker computes: with several GPUs, each takes its own, in turn."""
    device = torch.device(job.device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    return device
