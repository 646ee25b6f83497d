"""Which samples a worker of a complete run draws, over all its generations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.claims import ENDLESS, Places, left_of
from ownpace.core.learning.drawn_ahead import DrawnAhead
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.sampling import Sampler, make_sampler
from ownpace.engines.job import Job
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.counters import Counters
from ownpace.engines.process.talk.regrouping import RegroupPlan

EVERYTHING: tuple[Places, ...] = ((0, ENDLESS),)


class WorkerData:
    """The samples, who has claimed which of them, and where this worker is in them."""

    def __init__(self, job: Job, connection: Connection, device: torch.device) -> None:
        self.train = TrainingSamples(job.task.train_samples(), job.seed).to(device)
        self.from_checkpoint: PlainState | None = None
        """Where a checkpoint says that this worker is; the next generation begins there."""
        self._job = job
        self._connection = connection
        self._numbers = {worker.name: number for number, worker in enumerate(job.fleet.workers)}
        self._left: Sequence[Places] = EVERYTHING
        self._counters: Counters | None = None
        self._begun_at = self._num_workers = 0
        self._sampler: Sampler | None = None
        self._place = 0
        """Which of the sampler's workers this one is."""

    def open_counters(self, node: ProcessWorker, look: Callable[[], None]) -> Counters:
        """Those of a node's generation; `look` is called while they wait for the first worker's."""
        rendezvous = self._connection.rendezvous
        return Counters(
            self._connection.store_of(node.context.generation),
            rendezvous.secret,
            first=node.rank == 0,
            spans_hosts=rendezvous.spans_hosts,
            timeout_s=rendezvous.timeout_s,
            on_wait=look,
        )

    def sampler(self, node: ProcessWorker, left: Sequence[Places], counters: Counters) -> Sampler:
        """Draws the samples that are left, from where this worker is."""
        job = self._job
        numbers = [self._numbers[worker.name] for worker in node.workers]
        sampler = make_sampler(
            job.sampling,
            len(self.train),
            len(numbers),
            job.seed,
            counters.claiming(0, node.rank),
            numbers=numbers,
            left=left,
            visits=self.train.visits,
        )
        if self.train.loads:
            sampler = DrawnAhead(sampler, self.train)
        if self.from_checkpoint is not None:
            sampler.go_on(node.rank, self.from_checkpoint)
        elif self._sampler is not None:
            sampler.go_on(node.rank, self._sampler.position(self._place))
        self._sampler, self._place, self.from_checkpoint = sampler, node.rank, None
        return sampler

    def start(self, node: ProcessWorker, left: Sequence[Places], counters: Counters) -> None:
        """The generation has started, for all workers: from now on its claims count."""
        counters.forget_path()  # all workers have opened the file: they have all said that they are prepared
        if self._counters is not None:
            self._counters.forget()
        self.close()
        self._counters, self._left = counters, left
        self._begun_at, self._num_workers = node.progress.samples, len(node.workers)

    def left_over(self, plan: RegroupPlan) -> list[Places]:
        """What the generation that has ended has left of its data."""
        if self._job.sampling != "queue" or self._counters is None:
            return list(self._left)
        claims = self._counters.claims(0, self._num_workers)
        return left_of(self._left, claims, plan.used or None, plan.samples - self._begun_at)

    def position(self) -> PlainState:
        """Where this worker is in its samples."""
        return {} if self._sampler is None else self._sampler.position(self._place)

    def close(self) -> None:
        """Leave nothing open."""
        if self._counters is not None:
            self._counters.close()
