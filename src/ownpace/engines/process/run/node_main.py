"""What one node's process does, from its first word to its last, whatever its role and whatever started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from typing import BinaryIO

import torch

from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.core.own_code import in_a_line
from ownpace.engines.job import Job
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.helper_life import HelperLife
from ownpace.engines.process.lives.life import is_evaluated, live
from ownpace.engines.process.lives.worker_life import WorkerLife
from ownpace.engines.process.meet.log_file import LogFile
from ownpace.engines.process.meet.supervisor import NodeOrder, die_with_parent, read_order


def be_forked_node(data: bytes, lifeline: PipeEnd) -> None:
    """The whole life of a child that the launcher forked."""
    _ignore_signals()
    _be_node(_understood(BytesIO(data)), lifeline.recv_bytes)


def be_spawned_node() -> None:
    """The whole life of a child that a torchrun rank started."""
    _ignore_signals()  # before its order is read, which imports what the order needs: Ctrl-C may come meanwhile
    _be_node(_understood(sys.stdin.buffer), partial(os.read, 0, 4096))


def _understood(stream: BinaryIO) -> NodeOrder:
    """This process's order. Reading it runs code of the user's, which may fail here though it did not in the parent."""
    try:
        return read_order(stream)
    except Exception as error:
        # In a line: every node says it, and its parent only sees that it is gone.
        print(f"ownpace: a new process cannot load its part of the run: {in_a_line(error)}", file=sys.stderr)
        sys.exit(1)


def _be_node(order: NodeOrder, lifeline: Callable[[], object]) -> None:
    _ignore_signals()
    # Before anything that may block: a parent that dies now must not leave this process behind.
    die_with_parent(lifeline, order.last_words)
    if order.log_folder is not None:
        log_to(order.log_folder, order.name)
    try:
        with Session(order.terms, order.rendezvous) as session:
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
        life = HelperLife(session, connection, context, is_late=order.is_late)
        stack.callback(life.close)
        stack.enter_context(connection.complaining())
        live(life)


def run_worker(
    session: Session, job: Job, index: int, device: torch.device, model: FlatModel | None = None
) -> list[str]:
    """Be a worker from the first sample to the last; `index` is its machine's place in the fleet.

    Returns:
        The lines of the run's first, evaluating and last records, which every worker gets at the end.
    """
    keep_large_blocks()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    address = session.roster.workers.members[index]
    evaluated = is_evaluated(address, session.roster)
    like = torch.empty(0, dtype=session.terms.dtype, device=device)
    with ExitStack() as stack:
        # Connected before the model is built: if that fails, on a GPU that is full, say, the hub is told why.
        connection, context = stack.enter_context(session.connected(address, like, is_evaluated=evaluated))
        if model is None:
            torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
            model = FlatModel(job.task, device, job.autocast)
        life = WorkerLife(session, connection, context, job, index, model)
        stack.callback(life.close)
        stack.enter_context(connection.complaining())
        return live(life)


def worker_device(job: Job, local_rank: int) -> torch.device:
    """Where a worker computes: with several GPUs, each takes its own, in turn."""
    device = torch.device(job.device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    return device
