"""One run in virtual time, from the first event to the last."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from ownpace.core.contract import events
from ownpace.core.contract.errors import Deadlock, InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.roster import Roster, divide
from ownpace.engines.virtual.clock import Call, Driver, EmptySchedule
from ownpace.engines.virtual.collectives import Collectives
from ownpace.engines.virtual.monitor import Model, Monitor
from ownpace.engines.virtual.nodes import VirtualCommunicator, VirtualServer, VirtualWorker
from ownpace.engines.virtual.replica import Replica
from ownpace.engines.virtual.simulation import Simulation
from ownpace.fleet import PlannedFault


def run_virtual(job: Job, emit: events.Emit, on_progress: OnProgress | None = None) -> Outcome:
    """Run a job in virtual time.

    Args:
        job: What to run.
        emit: Takes every event as it happens.
        on_progress: Called now and then with the samples so far and the virtual time.

    Returns:
        How it ended. Errors of the run itself (divergence, a dead machine, Ctrl-C) are in the outcome; bad
        input raises.
    """
    keep_large_blocks()
    # The caller's random numbers stay as they are. GPUs are named, since fork_rng would save the state of all.
    devices = [torch.device(job.device).index or 0] if torch.device(job.device).type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
        return VirtualRun(job, emit, on_progress).run()


class VirtualRun:
    """All nodes of one run, and what makes them go."""

    def __init__(self, job: Job, emit: events.Emit, on_progress: OnProgress | None) -> None:
        if not job.fleet.paced:
            raise InputError(
                "a machine of the fleet has no pace (samples_per_s), and virtual time cannot guess it; "
                "give it one, or use the engine 'process'"
            )
        self.simulation = Simulation(job, emit)
        self._collectives = Collectives(self.simulation)
        self._make_nodes()
        self._model = Model(self.simulation, self.workers, self.servers)
        self._monitor = Monitor(self.simulation, self.workers, self._model, on_progress)
        self.simulation.on_update = self._monitor.updated
        self._drivers: list[Driver] = []
        self._num_running = len(self.workers)

    def _make_nodes(self) -> None:
        job, layout = self.simulation.job, self.simulation.learning.layout
        surroundings = self.simulation, self._collectives
        bandwidth = job.fleet.network.bandwidth_bytes_per_s
        subgroups = divide(job.algorithm, len(job.fleet.workers))

        machines = job.servers
        shards = layout.shards(len(machines)) if machines else ()
        self.servers = [
            VirtualServer(surroundings, shard, machine.bandwidth_bytes_per_s or bandwidth)
            for shard, machine in zip(shards, machines, strict=True)
        ]
        self.communicators = [
            VirtualCommunicator(surroundings, i, bandwidth)
            for i in range(len(subgroups))
            if job.algorithm.has_communicators
        ]
        # One replica for all: workers that step alike share each step, which is then computed once.
        start = Replica(self.simulation.learning.initial, holders=len(job.fleet.workers))
        self.workers = [
            VirtualWorker(surroundings, rank, start, max(1, len(shards))) for rank in range(len(job.fleet.workers))
        ]
        self.simulation.roster = Roster(
            subgroups,
            [node.address for node in self.workers],
            [node.address for node in self.servers],
            [node.address for node in self.communicators],
        )

    def run(self) -> Outcome:
        """Start all nodes, let time pass, and write the last record, whatever happens."""
        simulation, monitor = self.simulation, self._monitor
        simulation.emit(self._header())
        error: OwnpaceError | None = None
        try:
            monitor.evaluate()  # the model before the first update is the first point of every curve
            self._start()
            with nullcontext() if simulation.real else _no_garbage_collection():
                simulation.clock.go_on()
            # What was in flight at the last mark has been applied since.
            monitor.evaluate()
        except EmptySchedule:
            error = Deadlock(self._who_waits())
        # Bad input raises, whenever it is found; only what happens to a valid run is its outcome.
        except InputError:
            raise
        except OwnpaceError as raised:
            error = raised
        except KeyboardInterrupt:
            error = Interrupted(
                f"interrupted at sample {monitor.totals.samples}; everything up to then has been written"
            )
        finally:
            for driver in self._drivers:
                driver.close()  # servers and communicators would go on for ever
        # After the coroutines: whatever they emit while being closed must not follow the last record.
        monitor.end(error)
        return Outcome("finished" if error is None else str(error), error, self._model.export())

    def _header(self) -> events.Run:
        learning = self.simulation.learning
        groups = self.simulation.roster.names()
        return self.simulation.job.header("virtual", learning.layout.size, learning.initial.nbytes, groups)

    def _start(self) -> None:
        algorithm, clock = self.simulation.job.algorithm, self.simulation.clock
        # Servers first, as what starts at the same time goes on in the order of starting: they wait for the first push.
        self._drivers += [clock.start(algorithm.server(node), _ignore) for node in self.servers]
        self._drivers += [clock.start(algorithm.communicator(node), _ignore) for node in self.communicators]
        self._drivers += [clock.start(algorithm.worker(node), self._worker_ended) for node in self.workers]
        if self.simulation.deadline_s < math.inf:
            clock.at(self.simulation.deadline_s, Call(self._monitor.training_ends))
        for fault in self.simulation.job.fleet.fault:
            # A pause is in the machine's own changes of pace; here it is only recorded.
            happening = partial(self._kill, fault) if fault.kind == "kill" else partial(self._note, "pause", fault)
            clock.at(fault.at_s, Call(happening))
            if fault.kind == "pause" and fault.back_at_s is not None:
                clock.at(fault.back_at_s, Call(partial(self._note, "back", fault)))

    def _worker_ended(self) -> None:
        # Servers and communicators never end by themselves, so the run is over with its last worker.
        self._num_running -= 1
        self.simulation.clock.going_on = self._num_running > 0

    def _note(self, what: str, fault: PlannedFault) -> None:
        self.simulation.emit(events.Fault(self.simulation.clock.time, fault.worker, what))

    def _kill(self, fault: PlannedFault) -> None:
        self._note("kill", fault)
        name, time, samples = fault.worker, self.simulation.clock.time, self._monitor.totals.samples
        raise MachineDied(
            f"{name} was killed at {time:g} s, after {samples} samples; the others cannot go on without it"
        )

    def _who_waits(self) -> str:
        waiting = [
            *(f"{worker.address.name} for a message" for worker in self.workers if worker.receiving),
            *self._collectives.waiting(),
        ]
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return f"nothing is left to happen, but {', '.join(waiting[:4])}{more} still wait; the algorithm is at fault"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Simulating time alone makes no reference cycles, and looking for them costs large fleets half their time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _ignore() -> None:
    pass
