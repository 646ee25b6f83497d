"""How long a worker takes, as the fleet prescribes it: pace, fixed costs, jitter, slow-downs and pauses."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.fleet import WorkerMachine

_BLOCK = 64


class Processor:
    """One worker's machine. It computes one thing at a time, and at the same time loads one thing at a time."""

    __slots__ = (
        "_changes",
        "_compute_free_s",
        "_edges",
        "_factors",
        "_jitter",
        "_load_free_s",
        "_rng",
        "_s_per_batch",
        "_samples_per_s",
        "io_s_per_sample",
        "s_per_update",
    )

    def __init__(self, worker: WorkerMachine, number: int, seed: int) -> None:
        machine = worker.machine
        assert machine.samples_per_s is not None, "a machine without a pace has no prescription"
        self.io_s_per_sample = machine.io_s_per_sample
        self.s_per_update = machine.s_per_update
        self._s_per_batch = machine.s_per_batch
        self._samples_per_s = machine.samples_per_s
        self._jitter = machine.jitter
        self._rng = np.random.default_rng(seed_for(seed, Purpose.JITTER, number)) if machine.jitter else None
        self._factors = array("d")
        # Empty for an undisturbed machine, whose `compute` is then one division and one comparison.
        self._changes = worker.rate_changes if any(rate != 1 for _, rate in worker.rate_changes) else ()
        self._edges = [edge for edge, _ in self._changes]
        self._compute_free_s = 0.0
        self._load_free_s = 0.0

    def state(self) -> PlainState:
        """What it needs to go on as if nothing had been between."""
        rng = None if self._rng is None else dict(self._rng.bit_generator.state)
        return {
            "compute_free_s": self._compute_free_s,
            "load_free_s": self._load_free_s,
            "factors": self._factors.tolist(),
            "rng": rng,
        }

    def go_on(self, state: PlainState) -> None:
        """Go on from such a state. A machine that has no jitter any more leaves that alone."""
        compute_free_s, load_free_s, factors = state["compute_free_s"], state["load_free_s"], state["factors"]
        assert isinstance(compute_free_s, float)
        assert isinstance(load_free_s, float)
        assert isinstance(factors, Sequence)
        self._compute_free_s, self._load_free_s = compute_free_s, load_free_s
        if self._rng is not None and isinstance(state["rng"], Mapping):
            self._rng.bit_generator.state = state["rng"]
            self._factors = array("d", factors)

    def abandon(self, now: float) -> None:
        """Stop what is under way: it is not wanted any more."""
        self._compute_free_s = min(self._compute_free_s, now)
        self._load_free_s = min(self._load_free_s, now)

    def load(self, ready_s: float, samples: int) -> tuple[float, float]:
        """When loading samples starts and ends."""
        start = max(ready_s, self._load_free_s)
        self._load_free_s = self._finish(start, samples * self.io_s_per_sample)
        return start, self._load_free_s

    def compute(self, ready_s: float, samples: int) -> tuple[float, float]:
        """When a micro-batch that is ready to go at `ready_s` starts and ends."""
        work_s = self.work_s(samples)
        free = self._compute_free_s
        start = ready_s if ready_s > free else free
        end = self._compute_free_s = self._finish(start, work_s) if self._changes else start + work_s
        return start, end

    def work_s(self, samples: int) -> float:
        """How long the next micro-batch takes on an undisturbed machine. Each is asked for once: jitter is drawn."""
        work_s = samples / self._samples_per_s + self._s_per_batch
        if self._rng is not None:
            if not self._factors:
                # In blocks: a call of numpy for one number costs far more than the number.
                self._factors.frombytes((1 + self._jitter * np.abs(self._rng.standard_normal(_BLOCK))).tobytes())
            # From the end, which moves nothing. Another order would change every run with jitter.
            work_s *= self._factors.pop()
        return work_s

    @property
    def is_steady(self) -> bool:
        """Whether its pace never changes."""
        return not self._changes

    def spend(self, ready_s: float, work_s: float) -> tuple[float, float]:
        """When a part of a micro-batch that is ready to go at `ready_s` starts and ends."""
        start = max(ready_s, self._compute_free_s)
        self._compute_free_s = self._finish(start, work_s)
        return start, self._compute_free_s

    def partway(self, start_s: float, end_s: float, share: float) -> float:
        """When this share of the work is done that is begun at `start_s` and done at `end_s`."""
        if not self._changes:
            return start_s + share * (end_s - start_s)
        work_s, time = 0.0, start_s
        for index in range(bisect_right(self._edges, start_s), len(self._edges)):
            edge = min(self._edges[index], end_s)
            work_s += (edge - time) * self._changes[index - 1][1]
            time = edge
        work_s += (end_s - time) * self._changes[-1][1]
        return self._finish(start_s, share * work_s)

    def update(self, ready_s: float) -> float:
        """When the step of an update ends that is made at `ready_s`; nothing is computed meanwhile."""
        self._compute_free_s = self._finish(max(ready_s, self._compute_free_s), self.s_per_update)
        return self._compute_free_s

    def _finish(self, time: float, work_s: float) -> float:
        """When `work_s` seconds of undisturbed work, begun at `time`, are done: the pace may change in between."""
        if not self._changes or not work_s:
            return time + work_s
        index = bisect_right(self._edges, time)
        rate = self._changes[index - 1][1]
        while index < len(self._changes) and (self._edges[index] - time) * rate < work_s:
            work_s -= (self._edges[index] - time) * rate
            time, rate = self._changes[index]
            index += 1
        # The rate is above 0 here: a pause has an end, and the loop does not stop inside one.
        return time + work_s / rate
