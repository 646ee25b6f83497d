"""WP-SGD: every node trains alone, and the models are averaged with weights that know who came how far.

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
until the run ends. Two combinations that the abstract mentions, rebuilt: inside a node, (a) a delayed SGD, `delay`
steps behind; (b) a synchronous mini-batch SGD of `per_node` workers; across nodes the same weights.

Once every node has mixed, equal weights are better: they average the most noise away. See the page on WP-SGD.

| paper | here |
|---|---|
| T, steps of the fastest | `steps` |
| λ, of the L2 term | `l2` |
| η | the optimizer's learning rate |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.local_round import LocalRound
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Message, Parameters
from ownpace.core.settings import not_negative, positive

WeightRule = Literal["exp", "exp2", "count", "equal", "optimal"]


@dataclass(frozen=True, kw_only=True)
class WpSgd(Algorithm):
    """Train alone until the fastest is done, then average, weighted by progress."""

    replicas_identical: ClassVar[bool] = True
    weights: WeightRule = "exp"
    """How nodes are weighted: exp, exp2, count, equal or optimal."""
    steps: int = 32
    """T: local steps of the fastest node in a round."""
    rounds: int | None = None
    """How many rounds there are; 1: one-shot, as in the paper. None: until the run ends."""
    l2: float = 0.01
    """λ: how strongly convex the objective is, for exp, exp2 and optimal."""
    noise: float = 0.1
    """σ*, for optimal."""
    distance: float = 1.0
    """δ_0, for optimal."""
    delay: int = 0
    """Inside a node: how many steps old the parameters are that a gradient is taken at."""
    per_node: int = 1
    """Workers that form one node and take its steps together."""

    def __post_init__(self) -> None:
        positive(steps=self.steps, rounds=self.rounds, noise=self.noise, distance=self.distance, per_node=self.per_node)
        not_negative(l2=self.l2, delay=self.delay)

    def subgroups(self, num_workers: int) -> tuple[tuple[int, ...], ...]:
        starts = range(0, num_workers, self.per_node)
        return tuple(tuple(range(start, min(start + self.per_node, num_workers))) for start in starts)

    async def worker(self, me: Worker) -> None:
        done = 0
        while me.training and (self.rounds is None or done < self.rounds):
            await self._round(me)
            done += 1

    async def _round(self, me: Worker) -> None:
        others = [worker for worker in me.workers if worker is not me.address]
        reports = [me.receive(worker) for worker in others]
        round_ = LocalRound(me)
        past: deque[Parameters] = deque([round_.start], maxlen=self.delay + 1)
        while True:
            gradient = await accumulate(me, me.batch_size, at=past[0] if self.delay else None)
            last = round_.steps + 1 >= self.steps or any([(await steps_and_lr(r))[0] > 0 for r in reports if r.done])
            notes = torch.tensor([float(last)], dtype=torch.float64)
            of_node = await me.all_reduce(gradient.noting(notes), me.subgroup)  # all of a node stop together
            assert of_node.notes is not None
            round_.step(of_node)
            if self.delay:
                past.append(me.parameters)
            if float(of_node.notes[0]) > 0 or not of_node.samples:
                break
        for worker in others:
            me.send(worker, torch.tensor([round_.steps, me.lr], dtype=torch.float64))
        told = {me.address: (round_.steps, me.lr)}
        for worker, report in zip(others, reports, strict=True):
            told[worker] = await steps_and_lr(report)

        of_rank = [told[worker] for worker in me.workers]
        nodes = self.subgroups(len(me.workers))
        counts = [of_rank[ranks[0]][0] for ranks in nodes]
        mine = next(i for i, ranks in enumerate(nodes) if me.rank in ranks)
        weight = self._weight(counts, mine, lr=of_rank[0][1]) / len(nodes[mine])
        work = round_.difference(weight)
        work.samples = round_.samples if me.rank == nodes[mine][0] else 0  # a node's samples count once
        total = await me.all_reduce(work)
        me.commit(round_.start.values - total.total, total)

    def _weight(self, counts: Sequence[int], mine: int, lr: float) -> float:
        """My node's weight. One that had no data left has none: it says nothing new."""
        if not counts[mine]:
            return 0.0
        weights = self.weigh([count for count in counts if count], lr)
        return weights[sum(count > 0 for count in counts[:mine])]

    def weigh(self, steps: Sequence[int], lr: float) -> list[float]:
        """The weights of nodes that have done so many steps: positive, and 1 in all.

        >>> [round(weight, 3) for weight in WpSgd(l2=0.5).weigh([10, 9, 8], lr=1.0)]
        [0.571, 0.286, 0.143]
        """
        if not any(steps):
            return [1 / len(steps)] * len(steps)
        if self.weights == "equal":
            logs = [0.0] * len(steps)
        elif self.weights == "count":
            logs = [math.log(max(n, 1e-300)) for n in steps]
        else:
            if self.l2 * lr >= 1:
                raise InputError(f"l2 is {self.l2} and the learning rate {lr}; their product must be below 1")
            contraction = math.log1p(-self.l2 * lr)
            if self.weights == "optimal":
                logs = [-2 * math.log(self.noise + self.distance * math.exp(n * contraction)) for n in steps]
            else:
                power = 2 if self.weights == "exp2" else 1
                logs = [power * (max(steps) - n) * contraction for n in steps]
        largest = max(logs)
        shares = [math.exp(log - largest) for log in logs]  # in log space: 10⁷ steps behind is still a number
        return [share / sum(shares) for share in shares]


async def steps_and_lr(report: Pending[Message]) -> tuple[int, float]:
    """What a worker tells at the end of its round: how many steps it took, and its learning rate."""
    body = (await report).body
    assert isinstance(body, torch.Tensor)
    return int(body[0]), float(body[1])


@dataclass(frozen=True, kw_only=True)
class SimuParallelSgd(WpSgd):
    """Train alone until the fastest is done, then take the plain mean."""

    weights: WeightRule = "equal"
    """Equal, by definition; see wp for others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights != "equal":
            raise InputError(f"weights is '{self.weights}', but simuparallel has equal weights; use wp for others")
