"""Layered SGD, LSGD (arXiv 1906.05936): Sync-SGD whose sum between groups hides behind the loading of data.

    worker:        load B_0;  for t = 0, 1, …:
                     g_i = ∇(w_t; B_t);  reduce-sum g_i to my communicator;  load B_{t+1}
                     h ← broadcast;  w_{t+1} = Opt(w_t, h)
    communicator:  h_j = reduce-sum / N;  h = all-reduce-sum of h_j among communicators (while workers load)
                   broadcast h in the subgroup

    Sync-SGD:  t_io + t_fb + t_AR(N) + t_up
    here:      t_fb + t_reduce + max(t_io, t_AR(G)) + t_bcast + t_up

Each subgroup has workers and one communicator, which holds no parameters. Staleness is zero: this *is* Sync-SGD with
the batch of all N workers, for any division into subgroups, since sums travel with their counts and are divided by
the count of all samples, never a mean of means. The step is taken when the broadcast arrives, after the next batch
has been loaded, with the learning rate of the gradient's own iteration (the released code takes that of the next).

If a loader prefetches, there is no loading left to hide behind, and only the hierarchy remains.

| symbol | meaning |
|---|---|
| N, G | number of workers, however they are divided; number of subgroups |
| B_t, g_i | a worker's batch and gradient |
| h_j, h | subgroup j's part; the mean gradient over all |
| t_io, t_fb, t_up | time to load a batch, for forward and backward pass, for the step |
| t_AR, t_reduce, t_bcast | time of an all-reduce among that many nodes; of a reduce and a broadcast in a subgroup |

| symbol | here |
|---|---|
| subgroups | the fleet's sites; or `groups` of about equal size, or `sizes` |
| N | the samples of all workers, counted with the sum |
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, shown
from ownpace.core.contract.roles import Communicator, Worker
from ownpace.core.contract.values import Batch, Gradient
from ownpace.core.settings import positive


@dataclass(frozen=True, kw_only=True)
class LayeredSgd(Algorithm):
    """Synchronous in two layers; the sum between groups is under way while workers load."""

    replicas_identical: ClassVar[bool] = True
    groups: int | None = None
    """Subgroups of about equal size, in order of rank. None: the sites of the fleet, or two where it has one."""
    sizes: str | None = None
    """The size of each subgroup in place of `groups`, separated by commas: 4,4,8."""

    def __post_init__(self) -> None:
        positive(groups=self.groups)
        if self.groups is not None and self.sizes is not None:
            raise InputError(f"groups is {self.groups} and sizes is {shown(self.sizes)}; give one of them")
        if self.sizes is not None and not all(_is_size(part.strip()) for part in self.sizes.split(",")):
            raise InputError(
                f"sizes is {shown(self.sizes)}; write the size of each subgroup, separated by commas: 4,4,8"
            )

    def check(self, num_workers: int, sampling: str | None) -> None:
        if self.groups is not None and self.groups > num_workers:
            raise InputError(f"groups is {self.groups}, but there are {num_workers} workers; use at most {num_workers}")

    def subgroups_at(self, sites: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        if self.groups is None and self.sizes is None and len(set(sites)) > 1:
            return tuple(
                tuple(rank for rank, site in enumerate(sites) if site == each) for each in dict.fromkeys(sites)
            )
        return self.subgroups(len(sites))

    def subgroups(self, num_workers: int) -> tuple[tuple[int, ...], ...]:
        if self.sizes is None:
            groups = min(self.groups or 2, num_workers)
            cuts = [num_workers * i // groups for i in range(groups + 1)]
        else:
            cuts = [0]
            for part in self.sizes.split(","):
                cuts.append(cuts[-1] + int(part))
            if cuts[-1] != num_workers:
                raise InputError(
                    f"sizes is {shown(self.sizes)}, {cuts[-1]} together, but there are {num_workers} workers"
                )
        return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(cuts))

    async def worker(self, me: Worker) -> None:
        communicator = me.subgroup.members[-1]
        loaded = await load(me)
        while me.training:
            gradient: Gradient | None = None
            for batch in loaded:
                gradient = await me.gradient(batch=batch, plus=gradient)
            await me.reduce(gradient, communicator, me.subgroup)
            # Between the reduce and the broadcast: this is what the sum among communicators hides behind.
            loaded = await load(me)
            me.step(await me.broadcast(None, communicator, me.subgroup))

    async def communicator(self, me: Communicator) -> None:
        while True:
            part: Gradient | None = await me.reduce(None, me.address, me.subgroup)
            assert part is not None
            # Sums with their counts, not means: subgroups may differ in size.
            total = await me.all_reduce(part, me.communicators)
            await me.broadcast(total, me.address, me.subgroup)


async def load(me: Worker) -> list[Batch]:
    """The next batch, in micro-batches."""
    batches, left = [], me.batch_size
    while left > 0:
        batches.append(await me.load(min(left, me.micro_batch)))
        left -= batches[-1].samples
    return batches


def _is_size(text: str) -> bool:
    # Nine digits: more machines than there are.
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0
