"""One run in virtual time, from the first event to the last."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import Deadlock, InputError, Interrupted, MachineDied, OwnpaceError
from ownpace.core.contract.values import Address, Group, Shard
from ownpace.core.learning.flat import Buffers
from ownpace.core.learning.optimizer import FlatOptimizer
from ownpace.core.learning.sampling import make_sampler
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.engines.job import Job, OnProgress, Outcome, ProgressReport
from ownpace.engines.learning import RealLearning
from ownpace.engines.memory import keep_large_blocks
from ownpace.engines.virtual.awaitables import Collective, CollectivePart, VirtualGradient
from ownpace.engines.virtual.clock import Call, Clock, Driver, EmptySchedule
from ownpace.engines.virtual.nodes import (
    VirtualCommunicator,
    VirtualLearner,
    VirtualServer,
    VirtualWorker,
    diverged,
)
from ownpace.engines.virtual.replica import Learning, Replica, TimingOnly
from ownpace.fleet import PlannedFault

_TICKS = 200
"""How often, at most, a run of known length reports its progress."""


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
    devices = [torch.device(job.device).index or 0] if torch.device(job.device).type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed_for(job.seed, Purpose.MODEL))
        return VirtualRun(job, emit, on_progress).run()


class VirtualRun:
    """All nodes of one run, the clock they share, and the books that are kept of them."""

    def __init__(self, job: Job, emit: events.Emit, on_progress: OnProgress | None) -> None:
        if not job.fleet.paced:
            raise InputError(
                "a machine of the fleet has no pace (samples_per_s), and virtual time cannot guess it; "
                "give it one, or use the engine 'process'"
            )
        self.job = job
        self.emit = emit
        self.detail = job.detail
        self.clock = Clock()
        self.latency_s = job.fleet.network.latency_s
        self.learning: Learning = (
            TimingOnly(job.task) if job.timing_only else RealLearning(job.task, torch.device(job.device), job.autocast)
        )
        num_train, num_workers = len(job.task.train_samples()), len(job.fleet.workers)
        self.sampler = None if job.timing_only else make_sampler(job.sampling, num_train, num_workers, job.seed)
        self._no_indices = torch.empty(0, dtype=torch.int64)
        self.real = not job.timing_only
        self.budget = job.samples or math.inf
        self.optimizer = cache(self._optimizer)

        self._samples = 0
        self._updates = 0
        self._staleness_sum = 0
        self._staleness_max = 0
        self.deadline_s = math.inf if job.seconds is None else job.seconds
        self._on_progress = on_progress
        self._eval_every = job.evaluations_every
        self._next_eval = math.inf if job.timing_only else self._eval_every
        self._evaluated_at: int | None = None
        self._sums: events.Sums | None = None
        self._tick_every = max(1, (job.samples or 100 * num_train) // _TICKS)
        self._next_tick = 0 if on_progress else math.inf
        self._next_mark = min(self._next_eval, self._next_tick)
        self._collectives: dict[tuple[Group, int], Collective] = {}
        self._turns: dict[tuple[Group, Address], int] = {}
        self._drivers: list[Driver] = []
        self._make_nodes()

    # ---- who takes part ----

    def _make_nodes(self) -> None:
        algorithm, fleet, layout = self.job.algorithm, self.job.fleet, self.learning.layout
        bandwidth = fleet.network.bandwidth_bytes_per_s
        self.whole = Shard(0, 0, layout.size)

        machines = self.job.servers
        shards = layout.shards(len(machines)) if machines else ()
        self.servers = [
            VirtualServer(self, shard, machine.bandwidth_bytes_per_s or bandwidth)
            for shard, machine in zip(shards, machines, strict=True)
        ]
        start = Replica(self.learning.initial, holders=len(fleet.workers))
        self._workers = [
            VirtualWorker(self, rank, worker.name, bandwidth, start, max(1, len(shards)))
            for rank, worker in enumerate(fleet.workers)
        ]
        divided = algorithm.subgroups(len(fleet.workers))
        communicators = [
            VirtualCommunicator(self, i, bandwidth) for i in range(len(divided)) if algorithm.has_communicators
        ]
        self._nodes = [*self.servers, *communicators, *self._workers]

        self.workers = Group("workers", tuple(self._workers))
        self.communicators = Group("communicators", tuple(communicators))
        servers = Group("servers", tuple(self.servers))
        for server in self.servers:
            server.subgroup = servers
        subgroups = []
        for i, ranks in enumerate(divided):
            members = (*(self._workers[rank] for rank in ranks), *communicators[i : i + 1])
            subgroups.append(Group(f"subgroup-{i}", members))
            for member in members:
                member.subgroup = subgroups[i]
        self.groups = [self.workers, servers, self.communicators, *subgroups]
        self._latest: VirtualLearner = self._workers[0]
        self._num_running = len(self._workers)

    def _optimizer(self, shard: Shard) -> FlatOptimizer:
        return self.learning.optimizer(self.job.optimizer, shard)

    # ---- running ----

    def run(self) -> Outcome:
        """Start everybody, let time pass, and close the books, whatever happens."""
        self.emit(self._header())
        error: OwnpaceError | None = None
        try:
            self._evaluate()
            self._start()
            with nullcontext() if self.real else _no_garbage_collection():
                self.clock.go_on()
            self._evaluate()
        except EmptySchedule:
            error = Deadlock(self._who_waits())
        except InputError:
            raise
        except OwnpaceError as raised:
            error = raised
        except KeyboardInterrupt:
            error = Interrupted(f"interrupted at sample {self._samples}; what there was has been written")
        finally:
            for driver in self._drivers:
                driver.close()  # servers and communicators would go on for ever
        reason = "finished" if error is None else str(error)
        self.emit(self._footer(reason))
        return Outcome(reason, error, self.learning.export(self._values(), self._buffers()))

    def _start(self) -> None:
        algorithm = self.job.algorithm
        for node in self._nodes:
            if isinstance(node, VirtualWorker):
                coroutine = algorithm.worker(node)
            elif isinstance(node, VirtualServer):
                coroutine = algorithm.server(node)
            else:
                coroutine = algorithm.communicator(node)
            on_end = self._worker_ended if isinstance(node, VirtualWorker) else _ignore
            self._drivers.append(self.clock.start(coroutine, on_end))
        if self.deadline_s < math.inf:
            self.clock.at(self.deadline_s, Call(self._training_ends))
        for fault in self.job.fleet.fault:
            happening = partial(self._kill, fault) if fault.kind == "kill" else partial(self._note, "pause", fault)
            self.clock.at(fault.at_s, Call(happening))
            if fault.kind == "pause" and fault.back_at_s is not None:
                self.clock.at(fault.back_at_s, Call(partial(self._note, "back", fault)))

    def _worker_ended(self) -> None:
        self._num_running -= 1
        self.clock.going_on = self._num_running > 0

    def _note(self, what: str, fault: PlannedFault) -> None:
        self.emit(events.Fault(self.clock.now, fault.worker, what))

    def _kill(self, fault: PlannedFault) -> None:
        self._note("kill", fault)
        name, time = fault.worker, self.clock.now
        raise MachineDied(
            f"{name} was killed at {time:g} s, after {self._samples} samples; the others cannot go on without it"
        )

    def _who_waits(self) -> str:
        waiting = [
            *(f"{worker.name} for a message" for worker in self._workers if worker._receiving),
            *(waiting for collective in self._collectives.values() for waiting in collective.waiting()),
        ]
        more = f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        return f"nothing is left to happen, but {', '.join(waiting[:4])}{more} still wait; the algorithm is at fault"

    # ---- what nodes ask of the run ----

    def draw(self, rank: int, samples: int) -> Tensor:
        """The next samples for a worker."""
        return self._no_indices if self.sampler is None else self.sampler.draw(rank, samples)

    def lr_factor(self, samples: float) -> float:
        """The schedule's factor after that many samples."""
        return self.job.lr_factor(samples)

    def join(self, group: Group, address: Address, what: str, root: Address | None, part: CollectivePart) -> None:
        """Let a node take part in its group's next collective."""
        part.joined_s = self.clock.now
        turn = self._turns.get((group, address), 0)
        self._turns[group, address] = turn + 1
        collective = self._collectives.get((group, turn))
        if collective is None:
            collective = self._collectives[group, turn] = Collective(self, group, what, root)
        if collective.join(address, what, part):
            del self._collectives[group, turn]

    def updated(self, node: VirtualLearner, version: int, samples: int, total_samples: int, staleness: int) -> None:
        """Keep the books: a node made an update. Of replicas, the first one to make it counts."""
        first_shard = node.shard.index == 0
        if first_shard and version <= self._updates:
            return
        if self.detail:
            self.emit(events.Update(self.clock.now, node.name, version, samples, total_samples, staleness))
        if first_shard:
            self._latest = node
            self._updates = version
            self._samples = total_samples
            self._staleness_sum += staleness
            if staleness > self._staleness_max:
                self._staleness_max = staleness
            if total_samples >= self._next_mark:
                self._passed_mark(total_samples)
            if total_samples >= self.budget:
                self._training_ends()

    def _training_ends(self) -> None:
        """The budget is spent: take stock. What nodes still have in flight they will bring to its end."""
        if self._sums is None:
            self.deadline_s = self.clock.now
            self._sums = self._take_stock()

    def _passed_mark(self, samples: int) -> None:
        if samples >= self._next_tick and self._on_progress is not None:
            self._next_tick = samples + self._tick_every
            self._on_progress(ProgressReport(samples, self.clock.now))
        if samples >= self._next_eval:
            self._next_eval = (samples // self._eval_every + 1) * self._eval_every
            self._evaluate()
        self._next_mark = min(self._next_tick, self._next_eval)

    # ---- the model as it stands ----

    def _values(self) -> Tensor:
        if self.servers:
            return torch.cat([server.parameters.values for server in self.servers])
        return self._latest.parameters.values

    def _buffers(self) -> list[Buffers]:
        return [worker.buffers for worker in self._workers]

    def _evaluate(self) -> None:
        version = sum(server.parameters.version for server in self.servers) or self._updates
        if self._evaluated_at == version:
            return
        self._evaluated_at = version
        score = self.learning.score(self._values(), self._buffers())
        if score is None:
            return
        loss = score.loss if math.isfinite(score.loss) else None
        self.emit(events.Evaluation(self.clock.now, self._samples, self._updates, loss, score.accuracy))
        if loss is None:
            raise diverged("the test loss", score.loss, self._samples)
        target, accuracy = self.job.target, score.accuracy
        if self.job.stop_at_target and target is not None and accuracy is not None and accuracy >= target:
            self._training_ends()

    # ---- the first record and the last ----

    def _header(self) -> events.Run:
        groups = {group.name: [member.name for member in group] for group in self.groups if len(group)}
        return self.job.header("virtual", self.learning.layout.size, self.learning.initial.nbytes, groups)

    def _footer(self, reason: str) -> events.End:
        return events.End(self.clock.now, reason, self._sums or self._take_stock())

    def _take_stock(self) -> events.Sums:
        now = self.clock.now
        begun_s = {e.worker: max(0.0, now - e.start) for e in self.clock.scheduled() if isinstance(e, VirtualGradient)}
        return events.Sums(
            seconds=now,
            samples=self._samples,
            updates=self._updates,
            staleness_mean=self._staleness_sum / max(1, self._updates),
            staleness_max=self._staleness_max,
            limit_samples_per_s=self.job.fleet.limit_samples_per_s(now),
            workers={worker.name: worker.tally(begun_s.get(worker, 0.0)) for worker in self._workers},
        )


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
