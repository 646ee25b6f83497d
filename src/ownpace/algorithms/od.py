"""OD-SGD: one-step delay (arXiv 2005.06728): workers step ahead on their own while the global update is under way.

    server:  plain Sync-SGD with its optimizer, full barrier: W_{t+1} = Opt(W_t, Σ G_t / Σ n)
    worker k, for the first T_w iterations (warm-up): ordinary Sync-SGD
    then:    g_t^k at x_t^k; start the push of g_t; do not wait
             x_{t+1}^k = W_t − η_l · u_t^k + μ_l (W_t − W_{t−1})       W_t holds gradients up to t − 1 only
             u = s·g_t^k + wd·W_t                                      s = 1 or 1/N
             u = … + λ (s·g)² ⊙ (W_t − W_{t−1})                        `compensated`
             u = … + λ/√MS (s·g)² ⊙ (W_t − W_{t−1})                    `adaptive`: MS ← m·MS + (1 − m)(s·g)² + 1e-7
             W_{t+1} arrives: local weights are overwritten; local steps never accumulate

Push, barrier, update and pull of iteration t happen beside the local step, forward and backward pass of t + 1: the
period is the longer of computing and communicating, not their sum. A worker is never more than one iteration ahead
of the slowest. What is evaluated and saved is W.

Departures. η_l is given as a multiple of the run's learning rate, so that it follows its schedule; the local step has
its own wd, 0 by default. `local_momentum` (μ_l) is ours: with μ_l = μ the local step knows the server's momentum, and
alone, with the same wd and a constant η, it is exact. The released kernels
permute λ, wd and the scale, so that compensation was in effect off there; here it does what the paper says. The
`all-reduce` form is ours: every worker keeps W itself, and a sum takes the place of the server.

| paper | here |
|---|---|
| T_w | `warmup` |
| η_l | `local_lr` · η |
| s | `scale`: `one` or `share` (1/N, as released) |
| λ, m | `compensation`, `decay` |
| wd of the local step | `local_weight_decay` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.group_barrier import Gathering, GroupTag, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending, Server, Worker
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.core.settings import not_negative


@dataclass(frozen=True, kw_only=True)
class OdSgd(Algorithm):
    """Synchronous updates one step late, with a local step in between."""

    warmup: int = 200
    """T_w: iterations of ordinary Sync-SGD at the start."""
    local: Literal["plain", "compensated", "adaptive"] = "plain"
    """The local step."""
    local_lr: float = 1.0
    """η_l as a multiple of the learning rate; 0: no local step, which is Pipe-SGD."""
    scale: Literal["one", "share"] = "one"
    """s: the own gradient counts fully, or as one of N."""
    local_momentum: float = 0.0
    """μ_l: the optimizer's momentum, if the local step is to know it; 0 as in the paper."""
    local_weight_decay: float = 0.0
    """wd of the local step."""
    compensation: float = 0.04
    """λ, for compensated and adaptive."""
    decay: float = 0.95
    """m, for adaptive."""
    form: Literal["server", "all-reduce"] = "server"
    """Parameter servers as in the paper, or none."""

    def __post_init__(self) -> None:
        not_negative(
            warmup=self.warmup,
            local_lr=self.local_lr,
            local_momentum=self.local_momentum,
            local_weight_decay=self.local_weight_decay,
            compensation=self.compensation,
        )
        if not 0 <= self.decay < 1:
            raise InputError(f"decay is {self.decay}; it must be at least 0 and below 1")

    @property
    def has_servers(self) -> bool:
        return self.form == "server"

    async def worker(self, me: Worker) -> None:
        place = GroupTag(0, len(me.workers))
        step = LocalStep(self, len(me.workers))
        for _ in range(self.warmup):
            if not me.training:
                break
            step.remember(me)
            await self._finish(me, self._start(me, place, await accumulate(me, me.batch_size)))
        if me.training:
            await self._run_ahead(me, place, step)
        if self.has_servers:
            place.leave(me)

    async def _run_ahead(self, me: Worker, place: GroupTag, step: LocalStep) -> None:
        gradient = await accumulate(me, me.batch_size)
        under_way = self._start(me, place, gradient)
        local = step.take(me, gradient)
        while me.training:
            gradient = await accumulate(me, me.batch_size, at=local)
            following = self._start(me, place, gradient)
            await self._finish(me, under_way)
            under_way = following
            local = step.take(me, gradient)
        await self._finish(me, under_way)

    def _start(self, me: Worker, place: GroupTag, gradient: Gradient) -> Pending[Gradient] | None:
        """Start a global update."""
        if self.has_servers:
            place.push(me, gradient)
            return None
        return me.all_reduce(gradient)

    async def _finish(self, me: Worker, under_way: Pending[Gradient] | None) -> None:
        """Wait for a global update: my parameters are W after that."""
        if under_way is None:
            await pull(me)
        else:
            me.step(await under_way)

    async def server(self, me: Server) -> None:
        gathering = Gathering()
        while True:
            gathered = gathering.take(await me.receive())
            if gathered is not None:
                me.step(gathered.total)
                for worker in gathered.workers:
                    me.send(worker, me.parameters)


class LocalStep:
    """The step that a worker takes on its own, and what it remembers for it."""

    def __init__(self, settings: OdSgd, num_workers: int) -> None:
        self._settings = settings
        self._scale = 1.0 if settings.scale == "one" else 1 / num_workers
        self._before: Tensor | None = None
        self._squares: Tensor | None = None
        self._first = True

    def remember(self, me: Worker) -> None:
        """Keep W_{t−1} of an iteration without a local step, where the next one will ask for it."""
        if self._settings.local_momentum:
            self._before = me.parameters.values

    def take(self, me: Worker, gradient: Gradient) -> Parameters:
        """x_{t+1} out of W_t, the own gradient and W_{t−1}."""
        settings, now = self._settings, me.parameters
        w = now.values
        moved = None if self._before is None else w - self._before
        self._before = w
        if not gradient.samples:
            return now
        g = gradient.total * (self._scale / gradient.samples)
        u = g + settings.local_weight_decay * w if settings.local_weight_decay else g
        if settings.local != "plain":
            square = g.square()
            strength: float | Tensor = settings.compensation
            if settings.local == "adaptive":
                m = settings.decay
                squares = (1 - m) * square + 1e-7
                self._squares = squares if self._squares is None else m * self._squares + squares
                strength = settings.compensation / self._squares.sqrt()
            if moved is not None and not self._first:
                u = u + strength * square * moved
        self._first = False
        x = w - settings.local_lr * me.lr * u
        if settings.local_momentum and moved is not None:
            x += settings.local_momentum * moved
        return Parameters(x, now.version, now.shard)
