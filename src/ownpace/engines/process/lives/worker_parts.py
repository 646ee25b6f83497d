"""What a worker needs at the edges of its generations: samples before the first, parameters, an optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.contract.values import Parameters
from ownpace.core.learning.claims import Places
from ownpace.core.learning.optimizer import State
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.node.worker import ProcessWorker


class NoSamples:
    """The samples of a worker that does not take part yet: there are none to draw."""

    def draw(self, rank: int, samples: int) -> Tensor:
        raise AssertionError("a worker draws samples only in a generation")

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass

    def left(self, used: Sequence[int]) -> list[Places]:
        return []

    def position(self, rank: int) -> PlainState:
        return {}

    def go_on(self, rank: int, position: PlainState) -> None:
        pass


def at_home(state: State, device: torch.device) -> State:
    """An optimizer's state where the parameters are."""
    # As torch does it: a count of steps stays on the CPU, what belongs to the numbers of a parameter goes with them.
    return [
        {key: value.to(device) if isinstance(value, Tensor) and value.dim() else value for key, value in entry.items()}
        for entry in state
    ]


def share_parameters(worker: ProcessWorker) -> None:
    """Begin with the parameters of rank 0, on all workers and servers."""
    values = worker.learner.held.values
    # Workers before servers: a server that has its parameters says that it is prepared, and the last one starts time.
    collectives = worker.sums.of(worker.workers)
    worker.sums.wait(collectives.channels.broadcast(values, 0), "workers")
    if worker.rank == 0:
        for server in worker.servers:
            shard = server.shard
            worker.send(server, Parameters(values[shard.start : shard.stop].clone(), 0, shard))
