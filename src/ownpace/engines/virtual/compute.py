"""How long a worker takes: pace, jitter, slow-downs and pauses."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ownpace.core.sampling import derive
from ownpace.fleet import WorkerMachine

_BLOCK = 64


class Unit:
    """Something that does one thing at a time, in the order asked, while the pace changes under it."""

    __slots__ = ("_changes", "_edges", "_free_s")

    def __init__(self, worker: WorkerMachine) -> None:
        self._changes = worker.rate_changes if any(rate != 1 for _, rate in worker.rate_changes) else ()
        self._edges = [edge for edge, _ in self._changes]
        self._free_s = 0.0

    def occupy(self, ready_s: float, work_s: float) -> tuple[float, float]:
        """When `work_s` seconds of undisturbed work that can begin at `ready_s` do begin, and end."""
        start = ready_s if ready_s > self._free_s else self._free_s
        end = self._free_s = self._finish(start, work_s) if self._changes else start + work_s
        return start, end

    def _finish(self, time: float, work_s: float) -> float:
        current = bisect_right(self._edges, time) - 1
        rate = self._changes[current][1]
        for edge, following in self._changes[current + 1 :]:
            if (edge - time) * rate >= work_s:
                break
            work_s -= (edge - time) * rate
            time, rate = edge, following
        return time + work_s / rate


class Processor:
    """One worker's machine: a unit that computes, and beside it one that loads samples."""

    __slots__ = ("_compute", "_factors", "_io_s_per_sample", "_jitter", "_load", "_rng", "_samples_per_s")

    def __init__(self, worker: WorkerMachine, rank: int, seed: int) -> None:
        machine = worker.machine
        self._samples_per_s = machine.samples_per_s
        self._io_s_per_sample = machine.io_s_per_sample
        self._jitter = machine.jitter
        self._rng = np.random.default_rng(derive(seed, 4, rank)) if machine.jitter else None
        self._factors: list[float] = []
        self._compute = Unit(worker)
        self._load = Unit(worker)

    def load(self, ready_s: float, samples: int) -> tuple[float, float]:
        """When loading samples starts and ends."""
        if not self._io_s_per_sample:
            return ready_s, ready_s
        return self._load.occupy(ready_s, samples * self._io_s_per_sample)

    def compute(self, ready_s: float, samples: int) -> tuple[float, float]:
        """When a micro-batch that is ready to go at `ready_s` starts and ends."""
        work_s = samples / self._samples_per_s
        if self._rng is not None:
            if not self._factors:
                self._factors = (1 + self._jitter * np.abs(self._rng.standard_normal(_BLOCK))).tolist()
            work_s *= self._factors.pop()
        return self._compute.occupy(ready_s, work_s)
