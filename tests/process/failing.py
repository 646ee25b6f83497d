"""What fails in one place only, so that tests can see how that is told."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ownpace import Algorithm
from ownpace.core.contract.roles import Worker
from ownpace.tasks import Quadratic


@dataclass(frozen=True)
class FullGpu(Quadratic):
    """A task whose model cannot be built on one of the workers."""

    def model(self) -> nn.Module:
        if multiprocessing.current_process().name == "worker-1":
            raise MemoryError("this GPU is full")
        return super().model()


@dataclass(frozen=True, kw_only=True)
class Selfish(Algorithm):
    """Promises equal replicas, but the last worker makes more of its third update."""

    replicas_identical: ClassVar[bool] = True

    async def worker(self, me: Worker) -> None:
        updates = 0
        while me.training:
            total = await me.all_reduce(await me.gradient())
            updates += 1
            me.step(total.scaled(2.0) if updates == 3 and me.rank == len(me.workers) - 1 else total)
