"""Barriers at a parameter server: the gradients of a group are gathered until all of its workers have pushed.

A worker says with each push to which group it belongs and how many workers that group has (`push(me, gradient, group=…,
size=…)`), so a server needs no list of groups. A worker that ends says so with `leave`; servers no longer wait for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ownpace.core.contract.roles import Server, Worker
from ownpace.core.contract.values import Address, Gradient, Message, union


def leave(me: Worker, *, group: int, size: int) -> None:
    """Tell the servers that I end, so that my group can go on without me."""
    for server in me.servers:
        me.send(server, leaves=group, size=size)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a whole group has pushed."""

    group: int
    workers: tuple[Address, ...]
    """By rank."""
    total: Gradient
    """Of the union of their samples."""


class Gathering:
    """A server's pushes that wait for the rest of their group."""

    def __init__(self) -> None:
        self._pushes: dict[int, dict[Address, deque[Gradient]]] = {}
        self._left: dict[int, set[Address]] = {}

    def take(self, message: Message) -> Gathered | None:
        """Take in what a worker sent; returns its group's gradients if they are complete now."""
        notes, size = message.notes, int(message.notes["size"])
        if "leaves" in notes:
            group = int(notes["leaves"])
            self._left.setdefault(group, set()).add(message.sender)
        else:
            group = int(notes["group"])
            self._pushes.setdefault(group, {}).setdefault(message.sender, deque()).append(message.gradient)
        return self._complete(group, size)

    def _complete(self, group: int, size: int) -> Gathered | None:
        # A union, since a worker may leave after its last push: it counts once.
        left = self._left.get(group, set())
        if group not in self._pushes or len(self._pushes[group].keys() | left) < size:
            return None
        pushes = self._pushes.pop(group)
        # By rank, not by arrival: floating-point sums depend on the order, and runs must be reproducible.
        workers = tuple(sorted(pushes, key=lambda worker: worker.index))
        total = union([pushes[worker].popleft() for worker in workers])
        # A worker may be one gradient ahead (OD-SGD): its second push waits for the next round.
        early = {worker: queue for worker, queue in pushes.items() if queue}
        if early:
            self._pushes[group] = early
        return Gathered(group, workers, total)


async def step_together(me: Server) -> None:
    """What a server does in lock-step: wait for all workers, make one update, and answer all of them."""
    gathering = Gathering()
    while True:
        gathered = gathering.take(await me.receive())
        if gathered is not None:
            me.step(gathered.total)
            for worker in gathered.workers:
                me.send(worker, me.parameters)


__all__ = ["Gathered", "Gathering", "leave", "step_together"]
