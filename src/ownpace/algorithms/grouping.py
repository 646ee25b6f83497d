"""Grouping-SGD (CCGRID 2019): machines of similar speed form a group; synchronous inside, asynchronous between groups.

    worker i of group g:  G_i at w, the parameters it last pulled;  push, low layers first;  pull
    server, once all workers of g have pushed:
        Y   = max(1, U − L_g + 1)                     1 + updates by other groups since this group's last one
        ḡ   = Σ_{i∈g} G_i / Σ_{i∈g} n_i · Y^−p         mean over the group's samples, weighted by its staleness
        w   ← Opt(w, ḡ)                               one momentum for all groups; weight decay is not divided by Y
        U  += 1;  L_g = U;  answer the group's workers with a snapshot of w

The abstract has groups by speed and servers ordered fast → slow that own the layers low → high; the weights 1/Y, the
shared momentum and low layers first on the wire are in the released code. U − L_g is exactly how stale the group's
gradient is, and gradients carry their version, so servers need no L.

Groups. Every worker begins as a group of its own (the asynchronous pre-run). Server 0 measures everybody's pace on
what they push, and after `prerun` pushes of each divides them: on a logarithmic scale, cut at the widest gaps,
refined by k-means, the number of groups by the variance-ratio criterion, among divisions with at most `max_groups`
groups that lie at least `min_gap` apart (that cap and that gap are ours: without them the criterion degenerates).
It tells a group's workers its new division along with the parameters, so all of a group change at the same moment.
`regroup_every` updates later it looks again. Or `groups` names them by hand, and they stay.

Data. By the queue, fast groups take more by themselves. With `data=shares` and sampling `shards`, a worker's share is
v_g / Σ_h v_h|h| with v_g the slowest speed of its group.

Departures: both engines compute a gradient in one piece, so a worker waits for all layers before its next forward
pass, not only for the lowest. `staleness_power` (p) and momentum per group are ours.

| symbol | here |
|---|---|
| Y | 1 + staleness of the gathered gradient |
| p | `staleness_power`; 0 turns the weights off |
| v_g | slowest pace of a group |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ownpace.core.blocks.accumulate import accumulate
from ownpace.core.blocks.group_barrier import Gathered, Gathering, GroupTag
from ownpace.core.blocks.paces import Paces, differs
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Address, Contribution
from ownpace.core.settings import not_negative, positive

Division = tuple[tuple[int, ...], ...]
"""Who belongs together, by rank."""


@dataclass(frozen=True, kw_only=True)
class GroupingSgd(Algorithm):
    """Synchronous among machines of similar speed, asynchronous between such groups."""

    fast_servers_first: ClassVar[bool] = True
    groups: str | None = None
    """Groups by hand, as ranks: 0,1/2,3 puts 0 and 1 together, and 2 and 3. None: by measured pace."""
    prerun: int = 4
    """Batches of each worker, at least, on which paces are measured."""
    max_groups: int = 4
    """At most so many groups."""
    min_gap: float = 0.25
    """A group is faster than the next by this share, at least."""
    staleness_power: float = 1.0
    """p: a group's gradient is weighted by 1/Y^p; 0: not at all."""
    momentum: Literal["shared", "group"] = "shared"
    """One optimizer state for all groups, or one each."""
    data: Literal["queue", "shares"] = "queue"
    """Fast groups take more samples from the queue by themselves; or shares (of sampling `shards`) follow the paces."""
    regroup_every: int = 0
    """Updates after which groups are looked at again; 0: never."""

    def __post_init__(self) -> None:
        positive(prerun=self.prerun, max_groups=self.max_groups, min_gap=self.min_gap)
        not_negative(staleness_power=self.staleness_power, regroup_every=self.regroup_every)
        if self.groups is not None:
            ranks = sorted(rank for group in self._by_hand() for rank in group)
            if ranks != list(range(len(ranks))):
                raise InputError(f"groups is '{self.groups}'; name every rank from 0 on exactly once, as in 0,1/2,3")

    def _by_hand(self) -> Division:
        assert self.groups is not None
        try:
            return tuple(tuple(int(rank) for rank in group.split(",")) for group in self.groups.split("/"))
        except ValueError:
            raise InputError(f"groups is '{self.groups}'; write ranks, as in 0,1/2,3") from None

    def first_division(self, num_workers: int) -> Division:
        """The groups at the start."""
        if self.groups is None:
            return tuple((rank,) for rank in range(num_workers))
        division = self._by_hand()
        if sum(map(len, division)) != num_workers:
            raise InputError(f"groups is '{self.groups}', but there are {num_workers} workers; name them all")
        return division

    async def worker(self, me: Worker) -> None:
        division = self.first_division(len(me.workers))
        group = next(number for number, ranks in enumerate(division) if me.rank in ranks)
        place = GroupTag(group, len(division[group]))
        while me.training:
            place.push(me, await accumulate(me, me.batch_size))
            following = place
            for server in me.servers:
                message = await me.receive(server)
                if isinstance(message.body, Tensor):  # a new division
                    number, size, start, stop = message.body.tolist()
                    following = GroupTag(int(number), int(size))
                    if self.data == "shares":
                        me.take_share(start, stop)
                    message = await me.receive(server)
                me.place(message.parameters)
            place = following
        place.leave(me)

    async def server(self, me: Server) -> None:
        gathering = Gathering()
        divider = self._divider(me)
        left: set[Address] = set()
        while True:
            message = await me.receive()
            gathered = gathering.take(message)
            if isinstance(message.body, Tensor):
                left.add(message.sender)
                if len(left) == len(me.workers):  # all of them: whoever pushes next begins anew
                    left.clear()
                    divider = self._divider(me)
            if gathered is None:
                continue
            y = 1 + me.parameters.version - gathered.total.versions[0]
            memory = gathered.group if self.momentum == "group" else 0
            me.step(gathered.total.scaled(y**-self.staleness_power), memory=memory)
            news = divider.look(gathered) if divider is not None else {}
            for worker in gathered.workers:
                if worker.index in news:
                    me.send(worker, news[worker.index])
                me.send(worker, me.parameters)

    def _divider(self, me: Server) -> Divider | None:
        return Divider(self, len(me.workers)) if me.address.shard.index == 0 else None


class Divider:
    """Server 0's view of who is how fast, and who is to hear of a new division."""

    def __init__(self, settings: GroupingSgd, num_workers: int) -> None:
        self._settings = settings
        self._paces = Paces(num_workers, smoothing=0.3)
        self._pushes = [0] * num_workers
        self._updates = 0
        self._division = settings.first_division(num_workers)
        self._first_number = 0
        self._shares = [1 / num_workers] * num_workers
        self._next_look = 0.0
        self._news: dict[int, Tensor] = {}

    def look(self, gathered: Gathered) -> dict[int, Tensor]:
        """Take in one update; returns what its workers have to hear of a new division, by rank."""
        self._updates += 1
        shares = [Contribution(0, 0.0)] * len(self._pushes)
        for worker, share in zip(gathered.workers, gathered.total.contributions, strict=True):
            shares[worker.index] = share
            self._pushes[worker.index] += 1
        self._paces.take(shares)
        if not self._news and self._updates >= self._next_look and self._known:
            self._next_look = self._updates + self._settings.regroup_every if self._settings.regroup_every else math.inf
            self._divide()
        ranks = [worker.index for worker in gathered.workers]
        return {rank: self._news.pop(rank) for rank in ranks if rank in self._news}

    @property
    def _known(self) -> bool:
        return self._paces.known and min(self._pushes) >= self._settings.prerun

    def _divide(self) -> None:
        """See anew who belongs together and who has which share of the data; if that has changed, there are news."""
        paces, settings = self._paces.samples_per_s, self._settings
        division = self._division
        if settings.groups is None:
            division = cluster(paces, settings.max_groups, settings.min_gap)
        slowest = {rank: min(paces[other] for other in group) for group in division for rank in group}
        shares = [slowest[rank] / sum(slowest.values()) for rank in range(len(paces))]
        if set(map(frozenset, division)) != set(map(frozenset, self._division)):
            self._first_number += len(self._division)
            self._division = division
        elif settings.data == "queue" or not any(map(differs, shares, self._shares)):
            return
        self._shares = shares
        for number, group in enumerate(self._division, self._first_number):
            for rank in group:
                start = sum(shares[:rank])
                place = [number, len(group), start, start + shares[rank]]
                self._news[rank] = torch.tensor(place, dtype=torch.float64)


def cluster(paces: Sequence[float], max_groups: int, min_gap: float) -> Division:
    """Divide workers into groups of similar pace, the fastest group first.

    >>> cluster([100, 410, 99, 400, 205], max_groups=4, min_gap=0.25)
    ((1, 3), (4,), (0, 2))
    """
    ranks = sorted(range(len(paces)), key=lambda rank: (-paces[rank], rank))
    logs = [math.log(paces[rank]) for rank in ranks]
    best: tuple[float, list[int]] = (-math.inf, [0, len(ranks)])
    for count in range(2, min(max_groups, len(ranks)) + 1):
        widest = sorted(range(1, len(logs)), key=lambda i: (logs[i] - logs[i - 1], i))[: count - 1]
        cuts = _k_means(logs, [0, *sorted(widest), len(logs)])
        apart = all(logs[cut - 1] - logs[cut] >= math.log1p(min_gap) for cut in cuts[1:-1])
        ratio = _variance_ratio(logs, cuts)
        if apart and ratio > best[0]:
            best = ratio, cuts
    cuts = best[1]
    return tuple(tuple(sorted(ranks[a:b])) for a, b in itertools.pairwise(cuts))


def _k_means(values: Sequence[float], cuts: list[int]) -> list[int]:
    """Move the cuts of a falling sequence until every value is in the group whose mean is nearest."""
    for _ in range(100):
        means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
        moved = [0]
        for upper, lower in itertools.pairwise(means):
            middle = (upper + lower) / 2
            moved.append(max(moved[-1] + 1, sum(value > middle for value in values)))
        moved.append(len(values))
        if moved == cuts or any(a >= b for a, b in itertools.pairwise(moved)):
            return cuts
        cuts = moved
    return cuts


def _variance_ratio(values: Sequence[float], cuts: list[int]) -> float:
    """Calinski and Harabasz: variance between groups over variance within them, each per degree of freedom."""
    groups = [values[a:b] for a, b in itertools.pairwise(cuts)]
    mean = sum(values) / len(values)
    means = [sum(group) / len(group) for group in groups]
    between = sum(len(group) * (m - mean) ** 2 for group, m in zip(groups, means, strict=True))
    within = sum((value - m) ** 2 for group, m in zip(groups, means, strict=True) for value in group)
    if len(values) == len(groups) or within <= 1e-12 * between:
        return math.inf
    return between / (len(groups) - 1) / (within / (len(values) - len(groups)))
