"""OD-SGD: one-step delay (arXiv 2005.06728): workers step ahead on their own while the global update is under way.

    server:  plain Sync-SGD with its optimizer, full barrier: W_{t+1} = Opt(W_t, Σ G_t / Σ n)
    worker k, for the first T_w iterations (warm-up): ordinary Sync-SGD
    then:    g_t^k at x_t^k; start the push of g_t; do not wait
             x_{t+1}^k = W_t − η_l · u_t^k + μ_l (W_t − W_{t−1})       W_t holds gradients up to t − 1 only
             u = s·g_t^k + wd·W_t                                      s = 1 or 1/N
             u = … + λ (s·g)² ⊙ (W_t − W_{t−1})                        `compensated`
             u = … + λ/√MS (s·g)² ⊙ (W_t − W_{t−1})                    `adaptive`: MS ← m·MS + (1 − m)(s·g)² + 1e-7
             W_{t+1} arrives: local weights are overwritten; local steps never accumulate

Push, barrier, update and pull of iteration t run at the same time as the local step, forward and backward pass of
t + 1: the period is the longer of computing and communicating, not their sum. A worker is never more than one
iteration ahead of the slowest. What is evaluated and saved is W.

Departures. η_l is given as a multiple of the run's learning rate, so that it follows its schedule; the local step has
its own wd, 0 by default. `local_momentum` (μ_l) is ours: with μ_l = μ the local step knows the server's momentum, and
with one worker, the same wd and a constant η, it is exact. The released kernels permute λ, wd and the scale, so that
compensation was in effect off there; here it does what the paper says. The `all-reduce` form is ours: every worker
keeps W itself, and a sum takes the place of the server.

| symbol | meaning |
|---|---|
| W_t, x_t^k | global parameters; where worker k computes |
| g_t^k | worker k's own mean gradient |
| η, η_l, μ, μ_l | learning rate and momentum, of the optimizer and of the local step |
| s, wd | scale of the worker's own gradient, weight decay of the local step |
| λ, MS, m | strength of the compensation; mean square of gradients and its decay |

| paper | here |
|---|---|
| W_t, x_t^k | `me.parameters`, `x` |
| T_w | `warmup` |
| η_l | `local_lr` · η |
| s | `scale`: `one` or `share` (1/N, as released) |
| λ, m | `compensation`, `decay` |
| wd of the local step | `local_weight_decay` |
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from ownpace.core.blocks.accumulate import accumulate, accumulate_all_but_last
from ownpace.core.blocks.group_barrier import leave, step_together
from ownpace.core.blocks.push_pull import pull, push, push_by_layer
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending, Server, Worker
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.core.settings import not_negative

EPSILON = 1e-7
"""Added to MS at every step, as in the paper: it keeps λ/√MS finite."""


@dataclass(frozen=True, kw_only=True)
class OdSgd(Algorithm):
    """Synchronous updates one step late, with a local step in between."""

    warmup: float = 200
    """T_w: iterations of ordinary Sync-SGD at the start of the run; below 1, a share of the run's updates. Both 1
    and 1.0 are one update."""
    local: Literal["plain", "compensated", "adaptive"] = "plain"
    """The local step: plain, or with delay compensation of constant (compensated) or adaptive strength."""
    local_lr: float = 1.0
    """η_l as a multiple of the learning rate; 0: no local step, which is Pipe-SGD."""
    scale: Literal["one", "share"] = "one"
    """s: a worker's own gradient counts fully (one), or as one of N (share)."""
    local_momentum: float = 0.0
    """μ_l: the optimizer's momentum, if the local step is to know it; 0 in the paper."""
    local_weight_decay: float = 0.0
    """wd of the local step."""
    compensation: float = 0.04
    """λ, for compensated and adaptive."""
    decay: float = 0.95
    """m, for adaptive."""
    form: Literal["server", "all-reduce"] = "server"
    """Parameter servers as in the paper (server), or a sum among workers (all-reduce)."""
    by_layer: bool = False
    """With servers: let each layer of a gradient leave as soon as the backward pass has it."""

    def __post_init__(self) -> None:
        not_negative(
            warmup=self.warmup,
            local_lr=self.local_lr,
            local_momentum=self.local_momentum,
            local_weight_decay=self.local_weight_decay,
            compensation=self.compensation,
        )
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise InputError(
                f"warmup is {self.warmup}; it must be a whole number of updates, or below 1 as a share of the run"
            )
        if self.by_layer and self.form != "server":
            raise InputError(
                f"by_layer is for servers, but form is '{self.form}'; use form server, or leave by_layer out"
            )
        if not 0 <= self.decay < 1:
            raise InputError(f"decay is {self.decay}; it must be at least 0 and below 1")

    @property
    def has_servers(self) -> bool:
        return self.form == "server"

    def remark(self, updates: int) -> str | None:
        is_share = 0 < self.warmup < 1
        warmup = math.ceil(self.warmup * updates) if is_share else min(self.warmup, updates)
        # Whoever gives a share above a half means it, but hardly one that leaves next to nothing.
        if warmup <= updates * (0.9 if is_share else 0.5):
            return None
        instead = "a smaller share" if is_share else "fewer updates, or as a share of the run"
        return (
            f"{updates - warmup:,.0f} of {updates:,} updates were OD-SGD's, the others its warm-up, which is Sync-SGD; "
            f"give warmup as {instead}, as in -p warmup=0.05"
        )

    async def worker(self, me: Worker) -> None:
        update: GlobalUpdate = ByServers(me) if self.has_servers else BySum(me)
        local = LocalStep(self, len(me.workers))
        warmup = self._num_warmup(me)
        # By the run's updates: a generation that begins later, after a checkpoint or a failure, warms up no more.
        while me.training and me.updates < warmup:
            if self.local_momentum:  # asks for W_{t−1} at the first local step; a snapshot costs a copy at every update
                local.remember(me.parameters)
            await self._start(me, update)
            await update.finish()
        if me.training:
            await self._run_ahead(me, update, local)
        update.leave()

    def _num_warmup(self, me: Worker) -> float:
        """T_w, in updates."""
        if not 0 < self.warmup < 1:
            return self.warmup
        if me.run_samples is None:
            raise InputError(
                f"warmup is {self.warmup}, a share of the run, but nothing says how many samples that has; "
                "give it as a number of updates"
            )
        return self.warmup * me.run_samples / (me.batch_size * len(me.workers))

    async def _run_ahead(self, me: Worker, update: GlobalUpdate, local: LocalStep) -> None:
        gradient = await self._start(me, update)
        x = local.step(me.parameters, gradient, me.lr)
        while me.training:
            # First the push of this gradient, then the wait for the last update: the other way round, communication
            # would stand still while this worker waits.
            gradient = await self._start(me, update, at=x)
            await update.finish()
            x = local.step(me.parameters, gradient, me.lr)
        await update.finish()

    async def _start(self, me: Worker, update: GlobalUpdate, at: Parameters | None = None) -> Gradient:
        """Compute a batch's gradient, and start the update with it."""
        if self.by_layer:
            pending = await accumulate_all_but_last(me, me.batch_size, at=at)
            update.start_by_layer(pending)
            return await pending
        gradient = await accumulate(me, me.batch_size, at=at)
        update.start(gradient)
        return gradient

    async def server(self, me: Server) -> None:
        await step_together(me)


class GlobalUpdate(Protocol):
    """How W_t becomes W_{t+1}: the two forms of this algorithm."""

    def start(self, gradient: Gradient) -> None:
        """Start an update with this gradient and those of the other workers."""

    def start_by_layer(self, gradient: Pending[Gradient]) -> None:
        """The same with a gradient that is still to be computed."""

    async def finish(self) -> None:
        """Wait for the oldest update under way: then my parameters are its W."""

    def leave(self) -> None:
        """I start no more updates."""


class ByServers:
    """The paper's form: servers hold W and its optimizer, and wait for all workers."""

    def __init__(self, me: Worker) -> None:
        self._me = me
        self._size = len(me.workers)

    def start(self, gradient: Gradient) -> None:
        push(self._me, gradient, group=0, size=self._size)

    def start_by_layer(self, gradient: Pending[Gradient]) -> None:
        push_by_layer(self._me, gradient, group=0, size=self._size)

    async def finish(self) -> None:
        await pull(self._me)

    def leave(self) -> None:
        leave(self._me, group=0, size=self._size)


class BySum:
    """Our form without servers: every worker holds W and makes the same update."""

    def __init__(self, me: Worker) -> None:
        self._me = me
        self._sums: deque[Pending[Gradient]] = deque()

    def start(self, gradient: Gradient) -> None:
        self._sums.append(self._me.all_reduce(gradient))

    def start_by_layer(self, gradient: Pending[Gradient]) -> None:
        raise AssertionError("refused with the settings: a gradient that was handed to a sum cannot be looked at")

    async def finish(self) -> None:
        self._me.step(await self._sums.popleft())

    def leave(self) -> None:
        pass


class LocalStep:
    """The step that a worker takes on its own, and what it remembers for it."""

    def __init__(self, settings: OdSgd, num_workers: int) -> None:
        self._settings = settings
        self._scale = 1.0 if settings.scale == "one" else 1 / num_workers
        self._previous: Tensor | None = None  # W_{t−1}
        self._mean_square: Tensor | None = None  # MS
        self._first = True

    def remember(self, now: Parameters) -> None:
        """Keep W_{t−1} of an iteration without a local step."""
        self._previous = now.values

    def step(self, now: Parameters, gradient: Gradient, lr: float) -> Parameters:
        """x_{t+1} out of W_t, the own gradient and W_{t−1}."""
        settings, w = self._settings, now.values
        moved = None if self._previous is None else w - self._previous
        g = gradient.total * (self._scale / max(1, gradient.samples))  # s·g
        u = g + settings.local_weight_decay * w if settings.local_weight_decay else g
        if settings.local != "plain":
            curvature = self._strength(g) * g.square()
            # The first term is 0: no local step has been taken yet whose delay there would be to compensate.
            if moved is not None and not self._first:
                u = u + curvature * moved
        x = w - settings.local_lr * lr * u
        if settings.local_momentum and moved is not None:
            x += settings.local_momentum * moved
        self._previous = w
        self._first = False
        return Parameters(x, now.version, now.shard)

    def _strength(self, g: Tensor) -> float | Tensor:
        """λ, or for the adaptive step λ/√MS."""
        if self._settings.local != "adaptive":
            return self._settings.compensation
        m = self._settings.decay
        new = (1 - m) * g.square() + EPSILON
        self._mean_square = new if self._mean_square is None else m * self._mean_square + new
        return self._settings.compensation / self._mean_square.sqrt()
