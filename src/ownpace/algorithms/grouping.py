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

Groups. Every worker begins as a group of its own (the asynchronous pre-run). Server 0 measures all paces on what the
workers push, and after `prerun` pushes of each divides them: on a logarithmic scale, cut at the widest gaps, refined
by k-means, the number of groups by the variance-ratio criterion, among divisions with at most `max_groups` groups that
are at least `min_gap` apart (that cap and that gap are ours: without them the criterion degenerates). A worker hears of
its new place along with the parameters, so all workers of a group change at the same moment. `regroup_every` updates
later server 0 looks again. Groups named by hand (`groups`) stay.

Data. By the queue, fast groups take more by themselves. With `data=shares` and sampling `shards`, a worker's share is
v_g / Σ_h v_h|h| with v_g the slowest speed of its group.

Layers. With `by_layer`, a layer's gradient leaves as soon as the backward pass has it, and the next forward pass waits
for a layer only where it needs it, as in the released code. The low layers' gradients come last and their parameters
are needed first, so they have the least slack: that is what the fastest servers are for.

Departures: a server updates its shard as a whole, not tensor by tensor, and what waits for a link goes in the order of
its readiness, without priorities. `staleness_power` (p), momentum per group and regrouping are ours.

| symbol | meaning |
|---|---|
| G_i, n_i | worker i's sum of per-sample gradients, and its number of samples |
| U, L_g | updates so far; the value of U at the last update of group g |
| Y, p | 1 + staleness of the group's gradient; the power of its weight |

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

from ownpace.core.blocks.group_barrier import Gathered, Gathering, leave
from ownpace.core.blocks.paces import Paces, differs
from ownpace.core.blocks.push_pull import compute_and_push, pull
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, shown
from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import NO_NOTES, Contribution, Notes
from ownpace.core.settings import not_negative, positive

Division = tuple[tuple[int, ...], ...]
"""The ranks of each group."""


@dataclass(frozen=True, kw_only=True)
class GroupingSgd(Algorithm):
    """Synchronous among machines of similar speed, asynchronous between such groups."""

    fast_servers_first: ClassVar[bool] = True
    groups: str | None = None
    """Groups by hand, as ranks: 0,1/2,3 puts 0 and 1 together, and 2 and 3. None: by measured pace."""
    prerun: int = 4
    """Batches of each worker, at least, on which paces are measured."""
    max_groups: int = 4
    """The largest number of groups."""
    min_gap: float = 0.25
    """How much faster a group is than the next, at least: 0.25 is a quarter."""
    staleness_power: float = 1.0
    """p: a group's gradient is weighted by 1/Y^p; 0: no weights."""
    momentum: Literal["shared", "group"] = "shared"
    """One optimizer state for all groups (shared), or one for each (group)."""
    data: Literal["queue", "shares"] = "queue"
    """Fast groups take more samples from the queue by themselves (queue), or data shares follow the paces (shares, with
    sampling shards)."""
    regroup_every: int = 0
    """Updates after which the workers are divided again; 0: never."""
    by_layer: bool = False
    """Let layers travel on their own: gradients leave during the backward pass, and the next forward pass begins with
    the layers that have come."""

    def __post_init__(self) -> None:
        positive(prerun=self.prerun, max_groups=self.max_groups, min_gap=self.min_gap)
        not_negative(staleness_power=self.staleness_power, regroup_every=self.regroup_every)
        if self.groups is not None:
            ranks = sorted(rank for group in self._by_hand() for rank in group)
            if ranks != list(range(len(ranks))):
                raise InputError(
                    f"groups is {shown(self.groups)}; name every rank from 0 on exactly once, as in 0,1/2,3"
                )

    def check(self, num_workers: int, sampling: str | None) -> None:
        if self.data == "shares" and sampling is None:
            raise InputError("data is 'shares', but a script's data is dealt out by its own loop; leave data out")
        if self.data == "shares" and sampling != "shards":
            raise InputError(
                f"data is 'shares', which needs sampling 'shards', but sampling is '{sampling}'; change that, or leave "
                "data out"
            )

    def _by_hand(self) -> Division:
        assert self.groups is not None
        try:
            return tuple(tuple(int(rank) for rank in group.split(",")) for group in self.groups.split("/"))
        except ValueError:
            raise InputError(f"groups is {shown(self.groups)}; write ranks, as in 0,1/2,3") from None

    def first_division(self, num_workers: int) -> Division:
        """The groups at the start."""
        if self.groups is None:
            return tuple((rank,) for rank in range(num_workers))
        division = self._by_hand()
        if sum(map(len, division)) != num_workers:
            raise InputError(f"groups is {shown(self.groups)}, but there are {num_workers} workers; name them all")
        return division

    async def worker(self, me: Worker) -> None:
        division = self.first_division(len(me.workers))
        group = next(number for number, ranks in enumerate(division) if me.rank in ranks)
        size = len(division[group])
        while me.training:
            await compute_and_push(me, by_layer=self.by_layer, group=group, size=size)
            place = await pull(me, by_layer=self.by_layer)
            if place:  # server 0 has divided the workers anew
                group, size = int(place["group"]), int(place["size"])
                if self.data == "shares":
                    me.take_data_range(place["start"], place["stop"])
        leave(me, group=group, size=size)

    async def server(self, me: Server) -> None:
        gathering = Gathering()
        # One server decides for all; the others learn of a new division from the workers' next pushes.
        divider = Divider(self, len(me.workers)) if me.address.shard.index == 0 else None
        while True:
            gathered = gathering.take(await me.receive())
            if gathered is None:
                continue
            y = 1 + me.parameters.version - gathered.total.versions[0]
            memory = gathered.group if self.momentum == "group" else 0
            # Y is read before the step, which moves the version on; places are told after it, along with its result.
            me.step(gathered.total.scaled(y**-self.staleness_power), memory=memory)
            places = divider.look(gathered) if divider is not None else {}
            for worker in gathered.workers:
                me.send(worker, me.parameters.to_send(by_layer=self.by_layer), **places.get(worker.index, NO_NOTES))


class Divider:
    """Server 0's view of the workers' paces, and the places that workers have yet to hear of."""

    def __init__(self, settings: GroupingSgd, num_workers: int) -> None:
        self._settings = settings
        self._paces = Paces(num_workers, smoothing=0.3)
        self._pushes = [0] * num_workers
        self._updates = 0
        self._division = settings.first_division(num_workers)
        self._first_number = 0
        self._shares = [1 / num_workers] * num_workers
        self._next_look = 0.0
        self._places: dict[int, Notes] = {}

    def look(self, gathered: Gathered) -> dict[int, Notes]:
        """Take in one update; returns the new places of its workers, by rank, where they have new ones.

        All workers of a group are answered at the same moment, so they change groups together.
        """
        self._updates += 1
        parts = [Contribution(0, 0.0)] * len(self._pushes)
        for worker, part in zip(gathered.workers, gathered.total.contributions, strict=True):
            parts[worker.index] = part
            self._pushes[worker.index] += 1
        self._paces.take(parts)
        # Not before every worker has heard of the last division: its pushes would still come from the one before.
        if not self._places and self._updates >= self._next_look and self._known:
            self._next_look = self._updates + self._settings.regroup_every if self._settings.regroup_every else math.inf
            self._divide()
        ranks = [worker.index for worker in gathered.workers]
        return {rank: self._places.pop(rank) for rank in ranks if rank in self._places}

    @property
    def _known(self) -> bool:
        return self._paces.known and min(self._pushes) >= self._settings.prerun

    def _divide(self) -> None:
        """Divide the workers and the data by pace; if that changes anything, every worker gets a new place."""
        paces, settings = self._paces.samples_per_s, self._settings
        division = self._division
        if settings.groups is None:
            division = cluster(paces, settings.max_groups, settings.min_gap)
        shares = data_shares(division, paces)
        if set(map(frozenset, division)) != set(map(frozenset, self._division)):
            # New groups get new numbers: while some workers have not heard of the new division yet, servers gather
            # pushes of old and new groups side by side, and the two must never be mixed up.
            self._first_number += len(self._division)
            self._division = division
        elif settings.data == "queue" or not any(map(differs, shares, self._shares)):
            return
        self._shares = shares
        for number, group in enumerate(self._division, self._first_number):
            for rank in group:
                start = sum(shares[:rank])
                place = {"group": number, "size": len(group), "start": start, "stop": start + shares[rank]}
                self._places[rank] = place


def data_shares(division: Division, paces: Sequence[float]) -> list[float]:
    """Each worker's share of the data: v_g / Σ_h v_h|h|, with v_g the slowest pace of its group.

    >>> data_shares(((0, 1), (2,)), [410, 400, 100])
    [0.4444444444444444, 0.4444444444444444, 0.1111111111111111]
    """
    slowest = {rank: min(paces[other] for other in group) for group in division for rank in group}
    return [slowest[rank] / sum(slowest.values()) for rank in range(len(paces))]


def cluster(paces: Sequence[float], max_groups: int, min_gap: float) -> Division:
    """Divide workers into groups of similar pace, the fastest group first.

    >>> cluster([100, 410, 99, 400, 205], max_groups=4, min_gap=0.25)
    ((1, 3), (4,), (0, 2))
    """
    ranks = sorted(range(len(paces)), key=lambda rank: (-paces[rank], rank))
    logs = [math.log(paces[rank]) for rank in ranks]
    best: tuple[float, list[int]] = (-math.inf, [0, len(ranks)])
    for count in range(2, min(max_groups, len(ranks)) + 1):
        # Paces fall, so differences are negative: the smallest is the widest gap.
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
    # Far more than it takes: a bound for divisions between which rounding might go back and forth.
    for _ in range(100):
        means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
        moved = [0]
        for upper, lower in itertools.pairwise(means):
            middle = (upper + lower) / 2
            moved.append(max(moved[-1] + 1, sum(value > middle for value in values)))
        moved.append(len(values))
        # A group that would be left empty ends the search: the division before is kept.
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
    # Groups without any spread: the ratio would divide by zero.
    if len(values) == len(groups) or within <= 1e-12 * between:
        return math.inf
    return between / (len(groups) - 1) / (within / (len(values) - len(groups)))
