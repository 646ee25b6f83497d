"""The algorithm behind `ownpace.join("auto")`: it looks on while it trains, then goes on as the one it has chosen.

A script's data and loss are its own, so nothing can be tried out before: the first updates of the run are what is
measured. They are `sync`'s, of the usual number of samples, so nothing is wasted and nothing is different from a run of
`sync`. From update to update, workers next to each other compute a half more and a half less in turn, which shows how
the time of a batch follows its size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ownpace.algorithms import make_algorithm
from ownpace.core.blocks.accumulate import accumulate_and_step
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Contribution
from ownpace.drop_in.random_states import read_states, set_states
from ownpace.fleet import Fleet, Machine, Network
from ownpace.measuring.fit import fit_pace, pace_of
from ownpace.measuring.links import least, timed
from ownpace.planning import IN_SCRIPTS, choose_by_speed
from ownpace.planning.results import Choice

WARM_UP, UPDATES = 3, 16
"""Updates that are not looked at, and those that are."""
_SUMS = 5
_KEPT = "auto"


@dataclass(frozen=True, kw_only=True)
class Auto(Algorithm):
    """Look on while training synchronously, then go on as the algorithm that suits these machines."""

    replicas_identical: ClassVar[bool] = True
    tell: Callable[[str], None] = field(repr=False, default=print)
    """Gets the choice in one line, on rank 0."""
    chosen: list[Algorithm] = field(init=False, repr=False, compare=False, default_factory=list)
    """What this process has gone on as, for those who ask afterwards; no worker reads it."""

    async def worker(self, me: Worker) -> None:
        if _KEPT not in me.kept and not await self._choose(me):
            return
        # Kept: a script's next loop, and a run that goes on from a checkpoint, have the same.
        chosen = make_algorithm(IN_SCRIPTS[int(me.kept[_KEPT][0])])
        self.chosen[:] = [chosen]
        await chosen.worker(me)

    @property
    def at_work(self) -> Algorithm:
        return self.chosen[0] if self.chosen else self

    async def _choose(self, me: Worker) -> bool:
        """Choose, and keep that; false if the data has ended before."""
        number = 0
        if len(me.workers) > 1:
            looked = await _look(me)
            if looked is None:
                return False
            if me.rank == 0:
                choice = _decided(looked, me)
                self.tell(f"auto: {choice.why}")
                number = IN_SCRIPTS.index(choice.algorithm)
            # Of one rank for all: another machine's rounding might lead to another choice.
            first = me.workers.members[0]
            device = me.parameters.values.device
            number = int(await me.broadcast(torch.tensor([float(number)], device=device), first, me.workers))
        me.kept[_KEPT] = torch.tensor([float(number)])
        return True


async def _look(me: Worker) -> Fleet | None:
    """The machines as they showed themselves in a few updates; None: the data ended before."""
    paces: list[list[tuple[int, float]]] = [[] for _ in me.workers]
    besides: list[float] = []
    for update in range(WARM_UP + UPDATES):
        if not me.training:
            return None
        begun = time.perf_counter()
        made = await accumulate_and_step(me, _size(me, update))
        took = time.perf_counter() - begun
        parts: tuple[Contribution, ...] = made.contributions
        if update >= WARM_UP and all(part.samples and part.seconds > 0 for part in parts):
            besides.append(max(0.0, took - parts[me.rank].seconds))
            for pace, part in zip(paces, parts, strict=True):
                pace.append((part.samples, part.seconds))
    if not besides:
        return None
    values = me.parameters.values
    beside_s = await least(me, statistics.median(besides), values.device)
    empty_s, whole_s = await _sum_s(me, values[:1]), await _sum_s(me, values)
    # What is left is the script's own: drawing a batch, logging. Unlike a sum, that cannot be hidden.
    loop_s = max(0.0, beside_s - whole_s)
    machines = []
    for times in paces:  # which all workers have alike, as the sums had them
        found = fit_pace(times)
        fixed_s = found.s_per_batch + loop_s
        machines.append(Machine(samples_per_s=pace_of(found.s_per_sample), s_per_batch=fixed_s, jitter=found.jitter))
    return Fleet(machine=tuple(machines), network=_network(len(paces), empty_s, whole_s, values.nbytes))


def _size(me: Worker, update: int) -> int:
    """My part of an update: in turn a half more and a half less, so that all parts make up the usual number."""
    if me.rank == len(me.workers) - 1 and me.rank % 2 == 0:
        return me.batch_size  # without a neighbour
    half = me.batch_size // 2
    return me.batch_size + (half if (me.rank + update) % 2 else -half)


async def _sum_s(me: Worker, values: Tensor) -> float:
    """How long a sum of such a vector takes, at best."""
    return await least(me, min([(await timed(me, torch.zeros_like(values)))[1] for _ in range(_SUMS)]), values.device)


def _network(num_workers: int, empty_s: float, whole_s: float, nbytes: int) -> Network:
    """Links with which sums take so long: one of nothing, and one of the whole model."""
    steps = 2 * (num_workers - 1)
    per_byte = max(whole_s - empty_s, 1e-9) / nbytes
    bandwidth = min(1e15, max(1.0, steps / num_workers / per_byte))
    return Network(bandwidth_bytes_per_s=bandwidth, latency_s=empty_s / steps)


def _decided(fleet: Fleet, me: Worker) -> Choice:
    """The choice; the script's random numbers stay as they are."""
    states = read_states()
    try:
        values = me.parameters.values
        chosen = choose_by_speed(
            fleet,
            len(values),
            me.batch_size,
            micro_batch=me.micro_batch,
            bytes_per_parameter=values.element_size(),
        )
    finally:
        set_states(states)
    return chosen.choice
