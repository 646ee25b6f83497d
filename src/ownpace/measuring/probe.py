"""What every worker does while a fleet is measured: an algorithm that computes, sums, steps and sends, and notes times.

It runs where every algorithm does, so that it takes what the engine itself takes: on processes of this machine, on the
ranks of torchrun, in a user's own loop; and at prescribed paces, which is how it is tested. All workers compute at the
same time, as in training, so that those that share cores or memory show it. Nothing is learnt: gradients are thrown
away, and steps are too small to matter.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import torch

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.task import Task
from ownpace.measuring.fit import PaceFit, fit_pace
from ownpace.measuring.links import Links, measure_links, settle, timed

COMPUTING, STEPPING, LINKS = 0.6, 0.15, 0.25
"""How the time is divided."""
FEWEST_ROUNDS = 3
MOST_STEPS = 20
_NO_STEP = 1e-9
"""Of the learning rate: a step takes as long, but leads nowhere."""
_HOST_BYTES = 64


@dataclass(frozen=True)
class WorkerTimes(PaceFit):
    """What was found of one worker."""

    load_s_per_sample: float
    """Of reading samples alone, which is part of `s_per_sample`."""
    s_per_update: float
    micro_batches: float
    """How many were timed."""


@dataclass(frozen=True)
class Findings:
    """What was found of all of them."""

    hosts: list[str]
    workers: list[WorkerTimes]
    links: Links
    parameter_bytes: int

    def to_json(self) -> str:
        """As `from_json` reads it."""
        rows = [astuple(worker) for worker in self.workers]
        return json.dumps([self.hosts, rows, astuple(self.links), self.parameter_bytes])

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """The other way round."""
        hosts, rows, links, parameter_bytes = json.loads(text)
        return cls(hosts, [WorkerTimes(*row) for row in rows], Links(*links), parameter_bytes)


@dataclass(frozen=True, kw_only=True)
class Probe(Algorithm):
    """Measure, and learn nothing."""

    sizes: tuple[int, ...]
    """Of the micro-batches."""
    seconds: float
    # What differs from rank to rank is not shown: ranks compare what they run by how it is shown.
    task: Task | None = field(default=None, repr=False)
    """Whose samples are read, to see how long that takes."""
    loading: Callable[[int], float] | None = field(default=None, repr=False)
    """How long it took to read each of this many samples, where a script reads them."""
    report: Path = field(repr=False)
    """A file for what was found."""
    all_write: bool = False
    """Whether every worker writes it, each on its own host; else the first alone."""

    async def worker(self, me: Worker) -> None:
        gradient = me.no_gradient()
        for size in self.sizes:  # what is made on first use is not timed
            gradient = await me.gradient(size)
        times = await self._compute(me, gradient.total.device)
        s_per_update, sum_s = await _step(me, gradient, self.seconds * STEPPING)
        links = await measure_links(me, gradient, sum_s, self.seconds * LINKS)
        pace = fit_pace(times)
        load_s = self._load() if self.loading is None else self.loading(self._samples_of(times))
        mine = WorkerTimes(
            pace.s_per_batch, pace.s_per_sample, pace.jitter, pace.uncertainty, load_s, s_per_update, len(times)
        )
        hosts, workers = await _shared(me, mine, gradient.total.device)
        found = Findings(hosts, workers, links, gradient.total.nbytes)
        if me.rank == 0 or self.all_write:
            self.report.write_text(found.to_json())

    async def _compute(self, me: Worker, device: torch.device) -> list[tuple[int, float]]:
        """Samples and seconds of micro-batches: all sizes in turn, as often as time allows."""
        times: list[tuple[int, float]] = []
        # All begin together, so that all that share something do so from the first micro-batch to the last.
        await me.all_reduce(torch.zeros(1, device=device))
        end, rounds = time.perf_counter() + self.seconds * COMPUTING, 0
        while rounds < FEWEST_ROUNDS or time.perf_counter() < end:
            # Back and forth: what grows while measuring (heat, say) is not taken for a matter of size.
            for size in self.sizes if rounds % 2 == 0 else reversed(self.sizes):
                begun = time.perf_counter()
                gradient = await me.gradient(size)
                settle(gradient.total)
                if not gradient.samples:
                    return times  # no data is left
                times.append((gradient.samples, time.perf_counter() - begun))
            rounds += 1
        return times

    def _samples_of(self, times: list[tuple[int, float]]) -> int:
        """How many samples were read: those of the times, and those that came before."""
        return sum(self.sizes) + sum(samples for samples, _ in times)

    def _load(self) -> float:
        """How long it takes to read a sample, as part of a batch."""
        if self.task is None:
            return 0.0
        samples = samples_to_learn(self.task)
        size = min(max(self.sizes), len(samples))
        took = []
        for attempt in range(4):
            order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(attempt))
            begun = time.perf_counter()
            samples.pick(order[:size])
            took.append(time.perf_counter() - begun)
        return statistics.median(took[1:]) / size


async def _step(me: Worker, gradient: Gradient, seconds: float) -> tuple[float, float]:
    """How long an update takes, and the sum before it."""
    # Connects, and says how often there is time for it: the same number on all workers.
    await me.all_reduce(gradient)
    begun = time.perf_counter()
    me.step(await me.all_reduce(gradient), lr_scale=_NO_STEP)
    settle(gradient.total)
    once = await me.all_reduce(torch.tensor([time.perf_counter() - begun], device=gradient.total.device))
    often = min(MOST_STEPS, max(FEWEST_ROUNDS, int(seconds * len(me.workers) / max(1e-6, float(once)))))
    steps, sums = [], []
    for _ in range(often):
        total, took = await timed(me, gradient)
        sums.append(took)
        settle(gradient.total)
        begun = time.perf_counter()
        me.step(total, lr_scale=_NO_STEP)
        settle(gradient.total)
        steps.append(time.perf_counter() - begun)
    return statistics.median(steps), statistics.median(sums)


async def _shared(me: Worker, mine: WorkerTimes, device: torch.device) -> tuple[list[str], list[WorkerTimes]]:
    """The hosts and figures of all workers, by rank."""
    host = socket.gethostname().encode()[:_HOST_BYTES]
    numbers = len(fields(WorkerTimes))
    rows = torch.zeros(len(me.workers), numbers + _HOST_BYTES)
    rows[me.rank, :numbers] = torch.tensor(astuple(mine))
    rows[me.rank, numbers : numbers + len(host)] = torch.tensor(list(host), dtype=rows.dtype)
    rows = (await me.all_reduce(rows.to(device))).cpu()
    hosts = [bytes(int(each) for each in row[numbers:] if each).decode(errors="replace") for row in rows]
    return hosts, [WorkerTimes(*(float(each) for each in row[:numbers])) for row in rows]
