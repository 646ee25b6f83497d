"""What follows a run in virtual time: the model as it is, its evaluations, progress reports and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.flat import Buffers
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.task import Score
from ownpace.engines.job import Job, OnProgress, ProgressReport
from ownpace.engines.ledger import EvaluationMarks, Ledger, UpdateTotals, sums_of
from ownpace.engines.virtual.awaitables import VirtualGradient
from ownpace.engines.virtual.nodes import VirtualServer
from ownpace.engines.virtual.simulation import Simulation, Updated
from ownpace.engines.virtual.worker import VirtualWorker

_TICKS = 200
"""How often, at most, a run of known length reports its progress."""


class Model:
    """The model that is evaluated and saved: the servers' shards, or the replica that was updated last."""

    def __init__(
        self, simulation: Simulation, workers: Sequence[VirtualWorker], servers: Sequence[VirtualServer]
    ) -> None:
        self._learning = simulation.learning
        self._workers = workers
        self._servers = servers
        # All hold the same when a generation begins.
        self.latest: Updated = workers[0]

    def version(self, updates: int) -> int:
        """Changes with every update of any part of it."""
        return sum(server.progress.version for server in self._servers) or updates

    def score(self) -> Score | None:
        """How good it is; None where there is nothing to evaluate."""
        return self._learning.score(self._values(), self._buffers())

    def export(self) -> dict[str, Tensor]:
        """By names, ready to be saved."""
        return self._learning.export(self._values(), self._buffers())

    def _values(self) -> Tensor:
        if self._servers:
            return torch.cat([server.parameters.values for server in self._servers])
        # Not what it holds: it may be on its own way, between two updates.
        return self.latest.committed.values

    def _buffers(self) -> list[Buffers]:
        return [worker.buffers for worker in self._workers]


class Ticks:
    """Reports of progress, now and then."""

    def __init__(self, job: Job, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        # A budget of time has no length in samples: a hundred epochs stand in for it.
        self._every = max(1, (job.samples or 100 * len(samples_to_learn(job.task))) // _TICKS)
        self.next = math.inf if on_progress is None else 0
        """After how many samples the next one is due."""

    def tick(self, samples: int, t: float) -> None:
        """Report, if it is time."""
        if samples >= self.next and self._on_progress is not None:
            self.next = samples + self._every
            self._on_progress(ProgressReport(samples, t))


class Monitor:
    """Hears of every update: sums them up, evaluates the model, and ends training when the budget is spent."""

    model: Model
    _workers: Sequence[VirtualWorker]

    def __init__(self, simulation: Simulation, on_progress: OnProgress | None) -> None:
        job = simulation.job
        self._simulation = simulation
        self._departed: Mapping[str, Sequence[float]] = {}
        self._ledger = Ledger(simulation.emit, job.goal, stop_at_target=job.stop_at_target)
        self._budget = job.samples or math.inf
        self._ticks = Ticks(job, on_progress)
        self._eval_every = math.inf if job.timing_only else job.evaluations_every
        self._evaluations = EvaluationMarks(self._eval_every)
        self._evaluated_version: int | None = None
        # The earlier of the two, so that an update makes one comparison instead of two.
        self._next_mark = min(self._ticks.next, self._evaluations.next)
        self._sums: events.Sums | None = None
        self.totals = UpdateTotals()

    def attend(
        self,
        workers: Sequence[VirtualWorker],
        servers: Sequence[VirtualServer],
        tallies: Mapping[str, Sequence[float]],
    ) -> None:
        """A generation begins with these nodes; `tallies` are what workers have done before it."""
        self._workers = workers
        self._departed = tallies
        self.model = Model(self._simulation, workers, servers)

    @property
    def over(self) -> bool:
        """Whether training has ended."""
        return self._sums is not None

    def go_back(self, updates: int, samples: int) -> int:
        """Let the run be where its parameters are; returns how many updates that were recorded are lost."""
        lost = max(0, self.totals.updates - updates)
        self.totals.updates, self.totals.samples = updates, samples
        if lost:
            self._evaluated_version = None  # the next update of that number is another
        if self._sums is not None and updates < self._sums.updates:
            time_is_up = self._simulation.clock.time >= (self._simulation.job.seconds or math.inf)
            # The budget is not spent any more; but time that is up stays up.
            self._sums = replace(self._sums, updates=updates, samples=samples) if time_is_up else None
        self._evaluations = EvaluationMarks(self._eval_every, samples)
        self._next_mark = min(self._ticks.next, self._evaluations.next)
        return lost

    def books(self) -> PlainState:
        """All that it knows of the run so far."""
        met_s = self._ledger.watch.met_s
        return {"totals": asdict(self.totals), "evaluated_version": self._evaluated_version, "met_s": met_s}

    def go_on(self, books: PlainState) -> None:
        """Go on with such books."""
        totals, version, met_s = books["totals"], books["evaluated_version"], books.get("met_s")
        assert isinstance(totals, Mapping)
        assert version is None or isinstance(version, int)
        assert met_s is None or isinstance(met_s, float)
        self.totals = UpdateTotals(**totals)
        self._evaluated_version = version
        self._ledger.watch.met_s = met_s
        self._evaluations = EvaluationMarks(self._eval_every, self.totals.samples)
        self._next_mark = min(self._ticks.next, self._evaluations.next)

    def updated(self, whose: Updated, samples: int, staleness: int) -> None:
        """A node made an update. Of replicas, the first to make it counts; of servers, the first."""
        simulation, totals, progress = self._simulation, self.totals, whose.progress
        first_shard = whose.address.shard.index == 0
        version, total_samples = progress.version, progress.samples
        if first_shard and version <= totals.updates:
            return  # another replica made this update before
        now = simulation.clock.time
        if simulation.detail:
            simulation.emit(events.Update(now, whose.address.name, version, samples, total_samples, staleness))
        if first_shard:
            self.model.latest = whose
            totals.add(now, version, total_samples, staleness)
            if total_samples >= self._next_mark:
                self._passed_mark(total_samples)
            # After the evaluation: the sums are taken of a run whose last mark has been evaluated.
            if total_samples >= self._budget:
                self.training_ends()

    def merged(self, replica: Tensor, mean: Tensor) -> None:
        """A worker that was on its own way takes over the mean of all."""
        if self._sums is None:
            self.totals.add_spread(replica, mean)

    def training_ends(self) -> None:
        """The budget is spent: take the sums. What nodes still have in flight they bring to its end."""
        # The first time counts: the target may be reached, or the time be up, after the samples were spent.
        if self._sums is None:
            # From now on every message and every sum tells its receivers to stop.
            self._simulation.deadline_s = self._simulation.clock.time
            self._sums = self._sum_up()

    def evaluate(self) -> None:
        """Evaluate the model, unless that has been done since its last update."""
        version = self.model.version(self.totals.updates)
        if self._evaluated_version == version:
            return
        self._evaluated_version = version
        score = self.model.score()
        if score is None:
            return
        now, totals = self._simulation.clock.time, self.totals
        if self._ledger.evaluated(score, now, totals.samples, totals.updates):
            self.training_ends()

    def end(self, error: OwnpaceError | None) -> None:
        """Write the last record."""
        self._ledger.end(self._simulation.clock.time, error, self._sums or self._sum_up())

    def _passed_mark(self, samples: int) -> None:
        self._ticks.tick(samples, self._simulation.clock.time)
        if self._evaluations.passed(samples):
            self.evaluate()
        self._next_mark = min(self._ticks.next, self._evaluations.next)

    def _sum_up(self) -> events.Sums:
        clock = self._simulation.clock
        now = clock.time
        # A worker counts a computation when it is done, so what is under way is looked up among the scheduled events.
        begun_s = {id(e.worker): max(0.0, now - e.start) for e in clock.scheduled() if isinstance(e, VirtualGradient)}
        workers = {
            name: events.Tally(int(samples), compute_s, load_s)
            for name, (samples, compute_s, load_s) in self._departed.items()
        }
        workers |= {worker.address.name: worker.tally(begun_s.get(id(worker), 0.0)) for worker in self._workers}
        if self._departed:  # in the order of the fleet, whoever came and went
            numbers = self._simulation.numbers
            workers = dict(sorted(workers.items(), key=lambda item: numbers.get(item[0], len(numbers))))
        job = self._simulation.job
        limit = job.fleet.limit_samples_per_s(now, job.micro_batch or job.batch_size)
        return sums_of(self.totals, now, limit, workers)


__all__ = ["Model", "Monitor"]
