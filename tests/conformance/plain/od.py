"""OD-SGD: a worker steps ahead on its own while the update of all is under way."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from tests.conformance.plain.draws import Draws
from tests.conformance.plain.model import Model, added, gradient_sum, loss
from tests.conformance.plain.ring import in_equal_pieces
from tests.conformance.plain.setting import MESSAGE_BYTES, TASK, Result, Setting, Step
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Local:
    """The local step: x = W_t − η_l·u, u = s·g + wd·W_t + λ'(s·g)² ⊙ (W_t − W_{t−1}), and momentum if it knows it."""

    kind: str = "plain"
    lr: float = 1.0
    """η_l / η."""
    scale: str = "one"
    """s: one, or a share of 1/N."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    compensation: float = 0.0
    """λ: λ' = λ for compensated, λ/√MS for adaptive."""
    decay: float = 0.9
    """m, of MS."""

    def parameters(self) -> dict[str, object]:
        """In the algorithm's words."""
        return {
            "local": self.kind,
            "local_lr": self.lr,
            "scale": self.scale,
            "local_momentum": self.momentum,
            "local_weight_decay": self.weight_decay,
            "compensation": self.compensation,
            "decay": self.decay,
        }


class Push(NamedTuple):
    """One worker's gradient of one iteration."""

    iteration: int
    total: Tensor
    version: int
    """Of W, when it was computed."""


@dataclass
class Arrival:
    """W after an update, as it comes to a worker."""

    weights: Tensor
    version: int
    samples: int
    lr: float
    staleness: int


@dataclass
class Worker:
    """What one worker knows."""

    global_weights: Tensor
    """W_t."""
    point: Tensor
    """x_t, where it computes."""
    lr: float
    version: int = 0
    samples: int = 0
    previous: Tensor | None = None
    """W_{t−1}, since the first update."""
    previous_ahead: Tensor | None = None
    """W_{t−1}, since the first local step."""
    squares: Tensor | float = 0.0
    """MS."""
    iteration: int = 0
    left: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(TASK.dimensions, dtype=torch.float64))
    waiting: bool = False
    arrived: deque[Arrival] = field(default_factory=deque)
    out_free: float = 0.0
    in_free: float = 0.0


class OneStepLate:
    """A run, as a loop over a heap of (time, number, what happened, rank, what came)."""

    def __init__(self, setting: Setting, local: Local, warmup: int, form: str) -> None:
        self.setting, self.local, self.warmup, self.form = setting, local, warmup, form
        self.model = Model(setting)
        self.draws = Draws(setting.seed)
        start = self.model.weights
        self.workers = [Worker(start, start, self.model.lr) for _ in setting.paces]
        self.server_out_free = self.server_in_free = 0.0
        self.ring_free = 0.0
        self.gradients: dict[int, dict[int, tuple[Tensor, int]]] = {}
        self.steps: dict[int, Step] = {}
        self._heap: list[tuple[float, int, str, int, Push | Arrival | None]] = []
        self._numbers = itertools.count()

    def run(self) -> Result:
        for rank in range(len(self.workers)):
            self._begin(0.0, rank)
        while self._heap:
            now, _, what, rank, came = heapq.heappop(self._heap)
            worker = self.workers[rank]
            if what == "computed" and worker.left:
                self._compute(now, rank)
            elif what == "computed":
                self._computed(now, rank)
            elif isinstance(came, Push):
                self._gather(now, rank, came)
            elif isinstance(came, Arrival):
                for each in range(len(self.workers)) if what == "summed" else [rank]:
                    self._arrive(now, each, came)
        return Result(self.model.weights, [self.steps[version] for version in sorted(self.steps)])

    def _at(self, time: float, what: str, rank: int, came: Push | Arrival | None = None) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), what, rank, came))

    # a worker

    def _begin(self, now: float, rank: int) -> None:
        worker = self.workers[rank]
        if worker.samples < self.setting.samples:
            worker.total = torch.zeros(TASK.dimensions, dtype=torch.float64)
            worker.left = self.setting.batch_size
            self._compute(now, rank)

    def _compute(self, now: float, rank: int) -> None:
        worker = self.workers[rank]
        size = in_equal_pieces(worker.left, self.setting.micro)[0]
        worker.left -= size
        worker.total += gradient_sum(worker.point, self.draws.take(size))
        self._at(now + size / self.setting.paces[rank], "computed", rank)

    def _computed(self, now: float, rank: int) -> None:
        """g_t is there: start its push and do not wait, but for W_t itself."""
        worker = self.workers[rank]
        push = Push(worker.iteration, worker.total, worker.version)
        if self.form == "server":
            self._at(self._to_server(now, worker), "pushed", rank, push)
        else:
            self._gather(now, rank, push)
        if worker.iteration == self.warmup:  # the first of those that are late: W_t is what it was computed at
            self._step_ahead(now, rank)
        else:
            worker.waiting = True
            self._take_arrived(now, rank)

    def _arrive(self, now: float, rank: int, came: Arrival) -> None:
        self.workers[rank].arrived.append(came)
        self._take_arrived(now, rank)

    def _take_arrived(self, now: float, rank: int) -> None:
        """The global weights are overwritten by those of one more update."""
        worker = self.workers[rank]
        if not worker.arrived:
            return
        over = worker.samples >= self.setting.samples  # only what is still under way comes in
        if not worker.waiting and not over:
            return
        new = worker.arrived.popleft()
        if self.form == "all-reduce" and new.version not in self.steps:  # the first worker makes the update known
            num_samples = self.setting.num_workers * self.setting.batch_size
            self.steps[new.version] = Step(now, num_samples, new.staleness, loss(new.weights))
        worker.previous = worker.global_weights
        worker.global_weights, worker.version = new.weights, new.version
        worker.samples, worker.lr = new.samples, new.lr
        worker.waiting = False
        if over:
            return
        if worker.iteration < self.warmup:
            worker.iteration += 1
            worker.point = worker.global_weights
            self._begin(now, rank)
        else:
            self._step_ahead(now, rank)
        if worker.samples >= self.setting.samples:
            self._take_arrived(now, rank)

    def _step_ahead(self, now: float, rank: int) -> None:
        """x_{t+1} out of W_t, g_t and W_{t−1}."""
        worker, local = self.workers[rank], self.local
        w = worker.global_weights
        s = 1.0 if local.scale == "one" else 1 / self.setting.num_workers
        g = s * worker.total / self.setting.batch_size
        u = g + local.weight_decay * w
        moved = torch.zeros_like(w) if worker.previous_ahead is None else w - worker.previous_ahead
        worker.previous_ahead = w
        worker.squares = local.decay * worker.squares + (1 - local.decay) * g**2 + 1e-7
        if local.kind == "compensated":
            u = u + local.compensation * g**2 * moved
        elif local.kind == "adaptive":
            u = u + local.compensation / worker.squares**0.5 * g**2 * moved
        worker.point = w - local.lr * worker.lr * u
        if worker.previous is not None:
            worker.point = worker.point + local.momentum * (w - worker.previous)
        worker.iteration += 1
        self._begin(now, rank)

    # all together

    def _gather(self, now: float, rank: int, push: Push) -> None:
        """The full barrier: one update when every worker's gradient of this iteration is there."""
        iteration, total, version = push
        there = self.gradients.setdefault(iteration, {})
        there[rank] = (total, version)
        if len(there) < len(self.workers):
            return
        num_samples = self.setting.num_workers * self.setting.batch_size
        staleness = iteration - min(version for _, version in there.values())
        self.model.step(added(total for total, _ in there.values()) / num_samples, num_samples)
        new = Arrival(self.model.weights, iteration + 1, self.model.samples, self.model.lr, staleness)
        if self.form == "server":
            self.steps[new.version] = Step(now, num_samples, staleness, loss(new.weights))
            for each, worker in enumerate(self.workers):
                self._at(self._from_server(now, worker), "answered", each, new)
        else:
            self.ring_free = max(now, self.ring_free) + self.setting.ring_seconds
            self._at(self.ring_free, "summed", 0, new)

    # Links: both directions take one message after the other; a message takes up its receiver's way from the moment at
    # which it was sent off, and is there when it is through on both sides, a latency later.

    @property
    def _message_seconds(self) -> float:
        return MESSAGE_BYTES / self.setting.bandwidth

    def _to_server(self, now: float, worker: Worker) -> float:
        start = max(now, worker.out_free)
        worker.out_free = start + self._message_seconds
        self.server_in_free = max(now, self.server_in_free) + self._message_seconds
        return max(worker.out_free, self.server_in_free) + self.setting.latency

    def _from_server(self, now: float, worker: Worker) -> float:
        start = max(now, self.server_out_free)
        self.server_out_free = start + self._message_seconds
        worker.in_free = max(now, worker.in_free) + self._message_seconds
        return max(self.server_out_free, worker.in_free) + self.setting.latency
