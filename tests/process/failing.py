"""What fails in one place only, so that tests can see how that is told."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass

from torch import nn

from ownpace.tasks import Quadratic


@dataclass(frozen=True)
class FullGpu(Quadratic):
    """A task whose model cannot be built on one of the workers."""

    def model(self) -> nn.Module:
        if multiprocessing.current_process().name == "worker-1":
            raise MemoryError("this GPU is full")
        return super().model()
