"""One parameter server: links, and an event loop of its own."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass

import torch
from tests.conformance.plain.draws import Draws
from tests.conformance.plain.model import Model, gradient_sum, loss
from tests.conformance.plain.ring import in_equal_pieces
from tests.conformance.plain.setting import MESSAGE_BYTES, TASK, Result, Setting, Step
from torch import Tensor

NO_BOUND = math.inf


@dataclass
class Link:
    """One direction of a machine's link: what comes first goes first."""

    bandwidth: float
    free_at: float = 0.0

    def occupy(self, start: float, nbytes: int) -> float:
        """Send or receive one message from `start` on; returns when its last byte is through."""
        self.free_at = max(start, self.free_at) + nbytes / self.bandwidth
        return self.free_at


class ServerLoop:
    """A run with one server, as a loop over a heap of (time, number, what happened, rank).

    Workers compute a batch at the parameters they hold, push its gradient and wait for an answer. A subclass says
    in `arrived` what the server does about a push; `update` and `answer` are its means.
    """

    farewell_bytes = 0
    """What a worker that ends sends to say so: it delays the pushes behind it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.model = Model(setting)
        self.steps: list[Step] = []
        self.draws = Draws(setting.seed)
        workers = range(setting.num_workers)
        self.held = [self.weights for _ in workers]  # the parameters that each worker computes at
        self.versions = [0 for _ in workers]  # and how many updates made them
        self.sums = [torch.zeros(TASK.dimensions, dtype=torch.float64) for _ in workers]
        self._left = [0 for _ in workers]  # samples of its batch that each worker has not begun
        self._answers: dict[int, tuple[Tensor, int, bool]] = {}
        self._worker_out = [Link(setting.bandwidth) for _ in workers]
        self._worker_in = [Link(setting.bandwidth) for _ in workers]
        self._server_out = Link(setting.server_bandwidth or setting.bandwidth)
        self._server_in = Link(setting.server_bandwidth or setting.bandwidth)
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, str, int]] = []

    @property
    def weights(self) -> Tensor:
        """The global parameters as they are now."""
        return self.model.weights

    def run(self) -> Result:
        for rank in range(self.setting.num_workers):
            self._begin(0.0, rank)
        while self._heap:
            now, _, what, rank = heapq.heappop(self._heap)
            if what == "computed" and self._left[rank]:
                self._compute(now, rank)
            elif what == "computed":
                self._send(now, "pushed", rank, self._worker_out[rank], self._server_in)
            elif what == "pushed":
                self.arrived(now, rank)
            elif what == "answered":
                self._go_on(now, rank)
        return Result(self.weights, self.steps)

    def arrived(self, now: float, rank: int) -> None:
        """A worker's gradient has come to the server."""
        raise NotImplementedError

    def update(
        self, now: float, mean: Tensor, samples: int, *, staleness: int, lr_scale: float = 1.0, memory: int = 0
    ) -> None:
        """One step of the global parameters, with one of several momenta."""
        self.model.step(mean, samples, lr_scale, memory)
        self.steps.append(Step(now, samples, staleness, loss(self.weights)))

    @property
    def over(self) -> bool:
        """Whether the budget is spent."""
        return self.model.samples >= self.setting.samples

    def answer(self, now: float, rank: int) -> None:
        """Send a worker the parameters as they are now."""
        self._answers[rank] = (self.weights, len(self.steps), self.over)
        self._send(now, "answered", rank, self._server_out, self._worker_in[rank])

    def _go_on(self, now: float, rank: int) -> None:
        self.held[rank], self.versions[rank], over = self._answers[rank]
        if not over:
            self._begin(now, rank)
        elif self.farewell_bytes:
            self._send(now, "left", rank, self._worker_out[rank], self._server_in, self.farewell_bytes)

    def _begin(self, now: float, rank: int) -> None:
        """A worker begins its next batch, at the parameters it holds."""
        self.sums[rank] = torch.zeros(TASK.dimensions, dtype=torch.float64)
        self._left[rank] = self.setting.batch_size
        self._compute(now, rank)

    def _compute(self, now: float, rank: int) -> None:
        """A worker draws and computes one micro-batch."""
        size = in_equal_pieces(self._left[rank], self.setting.micro)[0]
        self._left[rank] -= size
        self.sums[rank] += gradient_sum(self.held[rank], self.draws.take(size))
        self._at(self.setting.when_computed(rank, now, size), "computed", rank)

    def _send(self, now: float, what: str, rank: int, out: Link, into: Link, nbytes: int = MESSAGE_BYTES) -> None:
        start = max(now, out.free_at)
        self._at(max(out.occupy(start, nbytes), into.occupy(start, nbytes)) + self.setting.latency, what, rank)

    def _at(self, time: float, what: str, rank: int) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), what, rank))


class ParameterServer(ServerLoop):
    """Async-SGD: one update for each push, at once; with a bound, who is too far ahead is answered later (stale)."""

    def __init__(self, setting: Setting, bound: float) -> None:
        super().__init__(setting)
        self.bound = bound
        self.clocks = [0 for _ in setting.paces]
        self.waiting: list[int] = []

    def arrived(self, now: float, rank: int) -> None:
        mean = self.sums[rank] / self.setting.batch_size
        self.update(now, mean, self.setting.batch_size, staleness=len(self.steps) - self.versions[rank])
        self.clocks[rank] += 1
        self.waiting.append(rank)
        for waiting in list(self.waiting):
            if self.over or self.clocks[waiting] - min(self.clocks) <= self.bound:
                self.waiting.remove(waiting)
                self.answer(now, waiting)


class BarrierServer(ServerLoop):
    """Sync-SGD through a server: one update for the pushes of all workers, and then answers to all, by rank."""

    farewell_bytes = 16  # two numbers

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.pushed: set[int] = set()

    def arrived(self, now: float, rank: int) -> None:
        self.pushed.add(rank)
        ranks = range(self.setting.num_workers)
        if len(self.pushed) == len(ranks):
            self.pushed.clear()
            samples = self.setting.batch_size * len(ranks)
            self.update(now, torch.stack(self.sums).sum(0) / samples, samples, staleness=0)
            for each in ranks:
                self.answer(now, each)
