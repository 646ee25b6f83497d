"""One rank of those that torchrun started: a worker; rank 0 also keeps the books, in a thread beside it.

Servers and communicators are processes of their own, started by the rank whose host they are to run on. They read
what they are to do from their standard input, and end when it closes: they cannot outlive who started them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

import torch

from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.learning import RealLearning
from ownpace.engines.process.run.hub import Hub, NodeFailed
from ownpace.engines.process.run.launch import backend_for, conclude, make_rules, make_terms, worker_device
from ownpace.engines.process.run.member import Membership, Terms, run_helper, run_worker
from ownpace.engines.process.run.rendezvous import Environment, Meeting, common_backend, meet
from ownpace.engines.roster import HUB, Roll

_GOING_HOME_S = 10.0
_PATIENCE_S = 10.0
"""How long a run may take to come to an end after Ctrl-C; torchrun kills who is still there after 30 s."""


def run_rank(job: Job, environment: Environment, emit: events.Emit, on_progress: OnProgress | None) -> Outcome:
    """Take part in a job as one of torchrun's ranks."""
    num_workers = len(job.fleet.workers)
    if num_workers != environment.world_size:
        raise InputError(
            f"the fleet has {num_workers} workers, but torchrun started {environment.world_size} processes; start "
            f"{num_workers} (--nproc-per-node on one host), or describe them with --fleet x{environment.world_size}"
        )
    device = worker_device(job, environment.local_rank)
    torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
    model = FlatModel(job.task, device, job.autocast)
    terms = make_terms(job, model.layout, model.initial.dtype)
    roll = terms.roll()
    store, meeting = meet(environment)
    able = backend_for(job.algorithm, device, environment.local_world_size)
    meeting = replace(meeting, backend=common_backend(store, environment, able))
    hub: Hub | None = None
    if environment.rank == 0:
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
        judge = RealLearning(job.task, device, job.autocast)
        post = Membership(HUB, meeting).post  # with a connection of its own: the store of this thread may block
        hub = Hub(post, roll, make_rules(job, judge, roll), emit, on_progress, judge)
    with Company(environment, roll, terms, meeting, hub, job.servers) as company, company.signals():
        error: OwnpaceError | None = None
        try:
            lines = run_worker(
                job,
                environment.rank,
                terms,
                meeting,
                device=device,
                model=model,
                spans_hosts=environment.spans_hosts,
                store=store,
                alarms=company.alarms,
                stops=company.stops,
            )
        except OwnpaceError as raised:
            error = raised
        except Exception:
            company.close()
            raise
        error = company.close(error)
    if hub is not None:
        return conclude(hub, error)
    if error is not None:
        raise error
    for line in lines:
        emit(events.from_line(line))
    return Outcome("finished", None, {})


class Company:
    """Whoever runs beside a rank: the hub's thread on rank 0, and the servers and communicators it started."""

    def __init__(
        self,
        environment: Environment,
        roll: Roll,
        terms: Terms,
        meeting: Meeting,
        hub: Hub | None,
        servers: tuple[Any, ...] = (),
    ) -> None:
        self.alarms: list[str] = []
        """Why this rank has to give up."""
        self.stops: list[str] = []
        """Signals that asked this rank to come to an end."""
        self._hub = hub
        self._over = False
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._reason: OwnpaceError | None = None
        for node in roll.nodes:
            if _started_here(node, roll, environment, servers):
                self._start(node, terms, meeting, spans_hosts=environment.spans_hosts)
        if hub is not None:
            self._spawn(self._keep_books, "ownpace-hub")

    def __enter__(self) -> Company:
        return self

    def __exit__(self, *details: object) -> None:
        self._over = True
        for process in self._helpers.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GOING_HOME_S)
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(_GOING_HOME_S)

    def _spawn(self, target: Any, name: str, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _start(self, node: Address, terms: Terms, meeting: Meeting, *, spans_hosts: bool) -> None:
        order = {
            "role": node.role,
            "index": node.index,
            "terms": terms.to_json(),
            "meeting": asdict(meeting),
            "spans_hosts": spans_hosts,
        }
        command = [sys.executable, "-c", "from ownpace.engines.process.run.torchrun import help_out; help_out()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        self._helpers[node.name] = process
        self._spawn(self._look_after, f"ownpace-{node.name}", node.name, process)

    def _look_after(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Raise the alarm when a helper ends before the run does."""
        code = process.wait()
        if not self._over and code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self.alarms.append(f"{name} {how}; the others cannot go on without it")

    def _keep_books(self) -> None:
        try:
            self._run_hub()
        except BaseException as error:
            self._reason = self._reason or NodeFailed(f"the hub: {type(error).__name__}: {error}")
            self.alarms.append(str(self._reason))
            raise

    def _run_hub(self) -> None:
        hub = self._hub
        assert hub is not None
        hub.begin()
        while not hub.done and hub.error is None and not self._over:
            hub.look(0.1)
            if self.stops and not hub.started:
                hub.complain(Interrupted("interrupted before the start"), secondary=False)
        error: OwnpaceError | None = hub.error
        if error is None and not hub.done:
            error = hub.worst() or MachineDied("rank 0 ended before the run did")
        elif error is None and self.stops:
            error = Interrupted(f"interrupted at sample {hub.samples}; what there was has been written")
        self._reason = error
        hub.finish("finished" if error is None else str(error))
        if hub.done:
            hub.farewell()
            return
        if error is not None:
            hub.give_up(error)
        if not self.alarms:
            self.alarms.append(str(error))

    def close(self, error: OwnpaceError | None = None) -> OwnpaceError | None:
        """End the books; returns what the run failed of, if it did."""
        if self._hub is None:
            return error
        thread = next(thread for thread in self._threads if thread.name == "ownpace-hub")
        if error is not None:
            self._hub.settle(error)
        thread.join(_GOING_HOME_S)
        self._over = True
        thread.join(_GOING_HOME_S)
        self._hub.post.close()
        return self._reason or error

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C and torchrun's SIGTERM let the run come to its end, with what there is."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self.stops.append(signal.Signals(number).name)
            if len(self.stops) == 1:
                patience.start()

        def give_up() -> None:
            self.alarms.append(
                f"{self.stops[0]} came, and the run did not end within {_PATIENCE_S:g} s; it is given up"
            )

        patience = threading.Timer(_PATIENCE_S, give_up)
        patience.daemon = True
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            patience.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)


def _started_here(node: Address, roll: Roll, environment: Environment, servers: tuple[Any, ...]) -> bool:
    """Whether this rank is the one to start a helper: on the host where the user wants it."""
    if node.role == "server":
        host = servers[node.index].host if node.index < len(servers) else 0
        if host >= environment.group_world_size:
            raise InputError(
                f"{node.name} is to run on host {host}, but there are {environment.group_world_size}, counted from 0"
            )
        return environment.group_rank == host and environment.local_rank == 0
    if node.role == "communicator":
        return roll.subgroup(node).members[0].index == environment.rank
    return False


def help_out() -> None:
    """What a server or communicator process does that a rank started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever started this process sees to it
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_die_with_rank, daemon=True).start()
    try:
        run_helper(
            order["role"],
            order["index"],
            Terms.from_json(order["terms"]),
            Meeting(**order["meeting"]),
            spans_hosts=order["spans_hosts"],
        )
    except OwnpaceError as error:
        sys.exit(error.exit_code)


def _die_with_rank() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
