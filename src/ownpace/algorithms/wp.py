"""WP-SGD: every node trains alone, and the models are averaged with weights that follow each node's progress.

    round:  common start; every node runs SGD on its own data with fixed η, until the fastest has done its T steps
            n_i = steps of node i,  T_i = max_j n_j − n_i,  r = 1 − λη
            v = Σ_i weight_i w_i

    `exp`      weight_i ∝ r^{T_i}                       the paper's form; each step on (λ/2)‖w‖² + loss contracts by r
    `exp2`     weight_i ∝ r^{2 T_i}
    `count`    weight_i ∝ n_i
    `equal`    weight_i = 1/k                           SimuParallel SGD
    `optimal`  weight_i ∝ 1/(σ* + r^{n_i} δ_0)²         σ*: noise of a node that has mixed; δ_0: distance of the start

The abstract of arXiv 1708.04801 gives the form; the formula of `exp` and the other rules are our reconstruction. The
paper averages once (`rounds=1`); deep nets need a common start more often, so by default rounds follow each other
until the run ends. Two combinations that the abstract mentions, rebuilt: inside a node, (a) a delayed SGD, whose
gradients are `delay` steps old; (b) a synchronous mini-batch SGD of `per_node` workers; across nodes the same weights.

Once every node has mixed, equal weights are better: they average the most noise away.

| symbol | meaning |
|---|---|
| k, w_i, v | number of nodes; where node i ends; the average |
| T, n_i, T_i | steps of the fastest; of node i; how many steps it is behind |
| λ, η, r | strength of the L2 term; learning rate; the factor by which a step contracts distances |

| paper | here |
|---|---|
| T, steps of the fastest | `steps` |
| n_i | `alone.steps` |
| λ, of the L2 term | `l2` |
| η | the optimizer's learning rate |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound, check_steps
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.core.settings import not_negative, positive

WeightRule = Literal["exp", "exp2", "count", "equal", "optimal"]


@dataclass(frozen=True, kw_only=True)
class WpSgd(Algorithm):
    """Train alone until the fastest is done, then average, weighted by progress."""

    replicas_identical: ClassVar[bool] = True
    weights: WeightRule = "exp"
    """How nodes are weighted by the steps they took: exp, exp2, count, equal or optimal."""
    steps: int = 32
    """T: local steps of the fastest node in a round."""
    rounds: int | None = None
    """The number of rounds; 1: one-shot, as in the paper. None: until the run ends."""
    l2: float = 0.01
    """λ: how strongly convex the objective is, for exp, exp2 and optimal."""
    noise: float = 0.1
    """σ*: the noise of a node that has mixed, for optimal."""
    distance: float = 1.0
    """δ_0: the distance of the start from the optimum, for optimal."""
    delay: int = 0
    """Inside a node: how many steps old the parameters are at which a gradient is computed."""
    per_node: int = 1
    """Workers that form one node and take its steps together; those of one site."""

    def __post_init__(self) -> None:
        positive(rounds=self.rounds, noise=self.noise, distance=self.distance, per_node=self.per_node)
        check_steps(self.steps)
        not_negative(l2=self.l2, delay=self.delay)

    def check(self, num_workers: int, sampling: str | None) -> None:
        if self.per_node > num_workers:
            raise InputError(
                f"per_node is {self.per_node}, but there are {num_workers} workers; use at most {num_workers}"
            )

    def subgroups(self, num_workers: int) -> tuple[tuple[int, ...], ...]:
        return self.subgroups_at([""] * num_workers)

    def subgroups_at(self, sites: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        nodes: list[list[int]] = []
        for rank, site in enumerate(sites):
            # No node is at two sites: its workers take every step together.
            if not nodes or len(nodes[-1]) == self.per_node or sites[nodes[-1][0]] != site:
                nodes.append([])
            nodes[-1].append(rank)
        return tuple(map(tuple, nodes))

    async def worker(self, me: Worker) -> None:
        done = 0
        while me.training and (self.rounds is None or done < self.rounds):
            await self._round(me)
            done += 1

    async def _round(self, me: Worker) -> None:
        reports = RoundReports(me)
        alone = await self._train_alone(me, reports)
        told = await reports.exchange(alone.steps)
        total = await me.all_reduce(self._weighted(me, alone, told))
        me.commit(alone.start.values - total.total, total)  # v = w_start − Σ_i weight_i (w_start − w_i)

    async def _train_alone(self, me: Worker, reports: RoundReports) -> LocalRound:
        """Local steps, until the fastest node has done its T."""
        alone = LocalRound(me)
        past: deque[Parameters] = deque([alone.start], maxlen=self.delay + 1)
        fastest_is_done = False
        while not fastest_is_done:
            gradient = await accumulate(me, me.batch_size, at=past[0] if self.delay else None)
            done = alone.steps + 1 >= self.steps or await reports.anyone_is_done()
            # What one worker of a node knows rides with the node's sum, so all of them stop after the same step.
            of_node = await me.all_reduce(gradient.noting(done=float(done)), me.subgroup)
            alone.step(of_node)
            if self.delay:  # a snapshot costs a copy of the parameters at the next step
                past.append(me.parameters)
            # A node whose data has ended would wait for a fastest node that may never come: it ends its round itself.
            fastest_is_done = of_node.notes["done"] > 0 or not of_node.samples
        return alone

    def _weighted(self, me: Worker, alone: LocalRound, told: Sequence[RoundReport]) -> Gradient:
        """weight_i (w_start − w_i); the workers of a node hold the same w_i and divide its weight among them."""
        nodes = self.subgroups_at([worker.site for worker in me.workers])
        node = next(i for i, ranks in enumerate(nodes) if me.rank in ranks)
        weight = self._weight([told[ranks[0]].steps for ranks in nodes], node, lr=told[0].lr)
        weighted = alone.difference(weight / len(nodes[node]))
        if me.rank != nodes[node][0]:
            weighted.samples = 0  # each worker has counted the samples of its whole node; they must count once
        return weighted

    def _weight(self, counts: Sequence[int], mine: int, lr: float) -> float:
        """My node's weight. One that had no data left has none: it has nothing new to say."""
        if not counts[mine]:
            return 0.0
        weights = self.weigh([count for count in counts if count], lr)
        return weights[sum(count > 0 for count in counts[:mine])]

    def weigh(self, steps: Sequence[int], lr: float) -> list[float]:
        """The weights of nodes that have done this many steps: positive, with sum 1.

        >>> [round(weight, 3) for weight in WpSgd(l2=0.5).weigh([10, 9, 8], lr=1.0)]
        [0.571, 0.286, 0.143]
        """
        if not any(steps):
            return [1 / len(steps)] * len(steps)
        logs = self._log_weights(steps, lr)
        largest = max(logs)
        shares = [math.exp(log - largest) for log in logs]  # in log space: 10⁷ steps behind is still a number
        return [share / sum(shares) for share in shares]

    def _log_weights(self, steps: Sequence[int], lr: float) -> list[float]:
        if self.weights == "equal":
            return [0.0] * len(steps)
        if self.weights == "count":
            return [math.log(max(n, 1e-300)) for n in steps]
        if self.l2 * lr >= 1:
            raise InputError(f"l2 is {self.l2} and the learning rate {lr}; their product must be below 1")
        log_r = math.log1p(-self.l2 * lr)
        if self.weights == "optimal":
            return [-2 * math.log(self.noise + self.distance * math.exp(n * log_r)) for n in steps]
        power = 2 if self.weights == "exp2" else 1
        return [power * (max(steps) - n) * log_r for n in steps]


class RoundReport(NamedTuple):
    """What a worker tells the others at the end of its round."""

    steps: int
    """Local steps that it took."""
    lr: float
    """Its learning rate."""


class RoundReports:
    """The reports of one round, which may come in while this worker still trains."""

    def __init__(self, me: Worker) -> None:
        self._me = me
        self._others = {worker: me.receive(worker) for worker in me.workers if worker is not me.address}

    async def anyone_is_done(self) -> bool:
        """Whether a worker has taken all its steps. One that had none to take says nothing about the fastest."""
        # A list: with an await in it, a generator would be asynchronous, and `any` cannot read that.
        return any([(await report).notes["steps"] > 0 for report in self._others.values() if report.done])

    async def exchange(self, steps: int) -> list[RoundReport]:
        """Tell my steps and wait for the others'; returns the reports of all workers, by rank."""
        me = self._me
        # All are told before any is awaited: otherwise two workers would wait for each other.
        for worker in self._others:
            me.send(worker, steps=steps, lr=me.lr)
        told = {me.address: RoundReport(steps, me.lr)}
        for worker, report in self._others.items():
            notes = (await report).notes
            told[worker] = RoundReport(int(notes["steps"]), notes["lr"])
        return [told[worker] for worker in me.workers]


@dataclass(frozen=True, kw_only=True)
class SimuParallelSgd(WpSgd):
    """Train alone until the fastest is done, then take the plain mean."""

    weights: WeightRule = "equal"
    """Equal, by definition; see wp for others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights != "equal":
            raise InputError(f"weights is '{self.weights}', but simuparallel has equal weights; use wp for others")
