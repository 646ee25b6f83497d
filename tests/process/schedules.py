"""Algorithms whose order of events is written down, so that both engines must do the very same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ownpace.core.blocks.accumulate import accumulate, accumulate_and_reduce, accumulate_and_step
from ownpace.core.blocks.push_pull import pull, push
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.roles import Communicator, Server, Worker
from ownpace.engines.process.node.worker import ProcessWorker


@dataclass(frozen=True, kw_only=True)
class ScriptedAsync(Algorithm):
    """Async-SGD whose server takes the workers' gradients in a given order, whatever their pace."""

    order: tuple[int, ...] = (0, 1, 0, 0, 1, 2, 0, 2)

    async def worker(self, me: Worker) -> None:
        for _ in range(self.order.count(me.rank)):
            push(me, await accumulate(me, me.batch_size))
            await pull(me)

    async def server(self, me: Server) -> None:
        for rank in self.order:
            push = await me.receive(me.workers.members[rank])
            me.step(push.gradient)
            me.send(push.sender, me.parameters)
        while True:
            await me.receive()


@dataclass(frozen=True, kw_only=True)
class Unequal(Algorithm):
    """Synchronous, each worker with a batch size of its own; nothing, for some."""

    replicas_identical: ClassVar[bool] = True
    sizes: tuple[int, ...] = (7, 0, 3)

    async def worker(self, me: Worker) -> None:
        while me.training:
            me.step(await accumulate_and_reduce(me, self.sizes[me.rank]))


@dataclass(frozen=True, kw_only=True)
class ByLayer(Algorithm):
    """Synchronous, on processes; and it is looked whether updates are made as layers arrive."""

    replicas_identical: ClassVar[bool] = True
    expected: bool = True

    async def worker(self, me: Worker) -> None:
        number = 0
        while me.training:
            await accumulate_and_step(me, me.batch_size)
            number += 1
            assert isinstance(me, ProcessWorker)
            # The first one makes the optimizer's state, and the last one waits for all of it.
            assert (me.learner.unfinished is not None) == (self.expected and number > 1 and me.training)


@dataclass(frozen=True, kw_only=True)
class Late(Algorithm):
    """Everything an algorithm may do besides: computing during a sum, looking ahead, adding up, noting."""

    replicas_identical: ClassVar[bool] = True

    async def worker(self, me: Worker) -> None:
        gradient = await me.gradient()
        while me.training:
            first, second, third = gradient.total[:3].tolist()
            in_flight = me.all_reduce(gradient.noting(first=first, second=second, third=third))
            ahead = me.peek(gradient)
            gradient = await me.gradient(at=ahead)
            batch = await me.load(2)
            gradient += await me.gradient(batch=batch)
            total = await in_flight
            assert set(total.notes) == {"first", "second", "third"}
            assert len(total.contributions) == len(me.workers)
            me.step(total, lr_scale=1.0 if sum(total.notes.values()) > 0 else 0.5)
        me.step(await me.all_reduce(gradient))


@dataclass(frozen=True, kw_only=True)
class Layers(Algorithm):
    """Two subgroups with communicators: reduce, all-reduce among them, broadcast."""

    replicas_identical: ClassVar[bool] = True

    def subgroups(self, num_workers: int) -> tuple[tuple[int, ...], ...]:
        return tuple(range(num_workers // 2)), tuple(range(num_workers // 2, num_workers))

    async def worker(self, me: Worker) -> None:
        communicator = me.subgroup.members[-1]
        while me.training:
            gradient = await me.gradient()
            await me.reduce(gradient, communicator, me.subgroup)
            me.step(await me.broadcast(None, communicator, me.subgroup))

    async def communicator(self, me: Communicator) -> None:
        while True:
            part = await me.reduce(None, me.address, me.subgroup)
            assert part is not None
            total = await me.all_reduce(part, me.communicators)
            await me.broadcast(total, me.address, me.subgroup)
