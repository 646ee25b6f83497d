"""One machine: the launcher starts all nodes as processes of its own, and sees to it that none outlives the run."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.core.learning.flat import Layout
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.learning import RealLearning
from ownpace.engines.process.run.hub import Hub, NodeFailed, Rules
from ownpace.engines.process.run.member import Membership, Terms, run_helper, run_worker
from ownpace.engines.process.run.rendezvous import LOOPBACK, Meeting, local_store
from ownpace.engines.process.talk.mailbox import RunKey
from ownpace.engines.roster import HUB, Roll

_PATIENCE_S = 20.0
"""How long nodes may take to come to an end after Ctrl-C."""
_GOING_HOME_S = 5.0
_LAST_WORDS_S = 1.0
"""How long a node whose code failed may take to print its traceback."""


def launch(job: Job, emit: events.Emit, on_progress: OnProgress | None) -> Outcome:
    """Run a job on processes of this machine."""
    return Launcher(job, emit, on_progress).run()


class Launcher:
    """The parent of all nodes, and the hub."""

    def __init__(self, job: Job, emit: events.Emit, on_progress: OnProgress | None) -> None:
        self._job = job
        self._emit = emit
        self._on_progress = on_progress
        self._children: dict[str, BaseProcess] = {}
        self._interrupted = 0

    def run(self) -> Outcome:
        """Start everybody, keep the books, and end everybody, whatever happens."""
        with self._signals():
            return self._run()

    def _run(self) -> Outcome:
        job = self._job
        store, port = local_store()
        lifeline, held = _context().Pipe(duplex=False)
        hub: Hub | None = None
        error: OwnpaceError | None = None
        membership: Membership | None = None
        try:
            with _threads_of_hub():
                with torch.random.fork_rng([]):
                    torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
                    judge = RealLearning(job.task, hub_device(job), job.autocast)
                terms = make_terms(job, judge.layout, judge.initial.dtype)
                roll = terms.roll()
                backend = backend_for(job.algorithm, torch.device(job.device), len(roll.workers))
                meeting = Meeting(LOOPBACK, port, "ownpace", RunKey.new().secret, LOOPBACK, backend)
                _start_forkserver()
                for node in roll.nodes:
                    self._start(node, terms, meeting, lifeline, len(roll.workers))
                membership = Membership(HUB, meeting)
                hub = Hub(membership.post, roll, make_rules(job, judge, roll), self._emit, self._on_progress, judge)
                hub.begin()
                error = self._watch(hub)
        except OwnpaceError as raised:
            error = raised
        except BaseException as raised:
            error = NodeFailed(f"the hub: {type(raised).__name__}: {raised}")
            raise
        finally:
            if hub is not None and membership is not None:
                patience_s = _LAST_WORDS_S if isinstance(error, NodeFailed) else 0.0
                try:
                    hub.finish("finished" if error is None else str(error))
                    if error is None:
                        hub.farewell()
                        patience_s = _GOING_HOME_S
                finally:  # even if nothing can be written any more
                    self._send_home(patience_s)
                    membership.post.close(now=True)
            else:
                self._send_home(0.0)
            held.close()
            lifeline.close()
            del store
        return conclude(hub, error)

    def _start(self, node: Address, terms: Terms, meeting: Meeting, lifeline: Connection, num_workers: int) -> None:
        job = self._job if node.role == "worker" else None
        process = _context().Process(
            target=_child, args=(node.role, node.index, job, terms, meeting, lifeline, num_workers), name=node.name
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"the run cannot be handed to another process: {error}; define tasks, algorithms and functions at the "
                "top of a module, not inside a function or as a lambda"
            ) from None
        self._children[node.name] = process

    def _watch(self, hub: Hub) -> OwnpaceError | None:
        """Keep the books until everybody has ended, or something went wrong."""
        deadline = math.inf
        while not hub.done:
            hub.look(0.05)
            self._look_after_children(hub)
            if hub.error is not None:
                return hub.error
            if self._interrupted == 1 and deadline == math.inf:
                hub.stop()
                deadline = time.monotonic() + _PATIENCE_S
            if self._interrupted and (self._interrupted > 1 or time.monotonic() > deadline or not hub.started):
                break
        if self._interrupted:
            return Interrupted(f"interrupted at sample {hub.samples}; what there was has been written")
        return None

    def _look_after_children(self, hub: Hub) -> None:
        for name, process in self._children.items():
            code = process.exitcode
            if code is None or name in hub.missed:
                continue
            hub.missed.add(name)
            if code < 0:
                cause = signal.Signals(-code).name
                died = f"{name} was killed by {cause} after {hub.samples} samples; the others cannot go on without it"
                hub.complain(MachineDied(died), secondary=False)
            else:
                hub.complain(MachineDied(f"{name} is gone: it ended with exit code {code}"), secondary=True)

    def _send_home(self, patience_s: float) -> None:
        """See to it that no child is left."""
        deadline = time.monotonic() + patience_s
        for process in self._children.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        for process in self._children.values():
            process.join()
            process.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run in order; once more, and at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self._interrupted += 1

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_terms(job: Job, layout: Layout, dtype: torch.dtype) -> Terms:
    """What all nodes of a job must know."""
    num_servers = len(job.servers)
    return Terms(
        algorithm=job.algorithm,
        workers=tuple(worker.name for worker in job.fleet.workers),
        num_servers=num_servers,
        layers=layout.layers,
        dtype=str(dtype).removeprefix("torch."),
        optimizer=job.optimizer,
        samples=job.samples,
        seconds=job.seconds,
        eval_every=job.evaluations_every,
        detail=job.detail,
    )


def make_rules(job: Job, judge: RealLearning, roll: Roll) -> Rules:
    """What the hub must know of a job."""
    return Rules(
        header=job.header("process", judge.layout.size, judge.initial.nbytes, roll.names()),
        replicas_identical=job.algorithm.replicas_identical,
        limit_samples_per_s=job.fleet.limit_samples_per_s if job.fleet.paced else None,
        eval_every=job.evaluations_every,
        target=job.target,
        stop_at_target=job.stop_at_target,
        judge_after=job.evaluate == "after",
    )


def conclude(hub: Hub | None, error: OwnpaceError | None) -> Outcome:
    """What became of a run."""
    if hub is None:
        assert error is not None
        raise error
    if isinstance(error, InputError):
        raise error
    if error is None and hub.replicas_identical() is False:
        error = OwnpaceError("the workers' parameters differ at the end, though the algorithm promises equal replicas")
    return Outcome("finished" if error is None else str(error), error, hub.model())


def backend_for(algorithm: Algorithm, device: torch.device, workers_here: int) -> str:
    """NCCL where every worker of this host has a card of its own, else gloo. Communicators have no cards."""
    own_cards = device.type == "cuda" and torch.cuda.device_count() >= workers_here
    return "nccl" if own_cards and not algorithm.has_communicators else "gloo"


def hub_device(job: Job) -> torch.device:
    """Where models are judged."""
    return worker_device(job, 0)


def worker_device(job: Job, local_rank: int) -> torch.device:
    """Where a worker computes: with several cards, each takes its own, in turn."""
    device = torch.device(job.device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    return device


def _context() -> Any:
    """Children are forked from a server that has torch imported already, and has done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ownpace.engines.process.run.launch"])
    return context


def _start_forkserver() -> None:
    """Start it such that Ctrl-C and SIGTERM do not reach it, not even before it has said that it wants no signals."""
    resource_tracker.ensure_running()  # else the next one would start it, and let all signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _threads_of_hub() -> Iterator[None]:
    """Judging must not take the cores from training."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _child(
    role: str, index: int, job: Job | None, terms: Terms, meeting: Meeting, lifeline: Connection, num_workers: int
) -> None:
    """What a child process does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the launcher sees to it
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    try:
        if role == "worker":
            assert job is not None
            if "OMP_NUM_THREADS" not in os.environ:
                torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_workers))
            run_worker(job, index, terms, meeting, device=worker_device(job, index), spans_hosts=False)
        else:
            run_helper(role, index, terms, meeting, spans_hosts=False)  # type: ignore[arg-type]
    except OwnpaceError as error:
        sys.exit(error.exit_code)  # the hub has heard of it and says it once
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def _die_with_parent(lifeline: Connection) -> None:
    """End this process at once when the launcher is gone: only it holds the other end of the pipe."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
