"""Barriers at a parameter server: the gradients of a group are gathered until everybody's is there.

A worker says with each gradient to which group it belongs and of how many that group consists, so a server needs to
know nobody beforehand. A worker that ends says so too; from then on nobody waits for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Address, Gradient, Message, union


@dataclass(frozen=True, slots=True)
class GroupTag:
    """A worker's place: the number of its group, and how many belong to it."""

    group: int
    size: int

    def push(self, me: Worker, gradient: Gradient) -> None:
        """Start sending a gradient to the servers, each its shard: low layers first on the wire."""
        noted = gradient.noting(torch.tensor([self.group, self.size], dtype=torch.float64))
        for server in me.servers:
            me.send(server, noted.part(server.shard))

    def leave(self, me: Worker) -> None:
        """Tell the servers that I end."""
        for server in me.servers:
            me.send(server, torch.tensor([self.group, self.size], dtype=torch.float64))


async def pull(me: Worker) -> None:
    """Take over the parameters that the servers answer with."""
    for server in me.servers:
        me.place((await me.receive(server)).parameters)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a whole group has pushed."""

    group: int
    workers: tuple[Address, ...]
    total: Gradient
    """Of the union of their samples."""


class Gathering:
    """A server's pushes that wait for the rest of their group."""

    def __init__(self) -> None:
        self._pushes: dict[int, dict[Address, deque[Gradient]]] = {}
        self._left: dict[int, set[Address]] = {}

    def take(self, message: Message) -> Gathered | None:
        """Take in what a worker sent; returns its group's gradients if they are complete now."""
        body = message.body
        if isinstance(body, Tensor):
            group, size = (int(number) for number in body.tolist())
            left = self._left.setdefault(group, set())
            left.add(message.sender)
            if len(left) == size:
                left.clear()  # all of them: whoever pushes next begins anew
        else:
            notes = message.gradient.notes
            assert notes is not None, "a push says to which group it belongs"
            group, size = (int(number) for number in notes.tolist())
            self._pushes.setdefault(group, {}).setdefault(message.sender, deque()).append(message.gradient)
        left = self._left.get(group, set())
        if group not in self._pushes or len(self._pushes[group].keys() | left) < size:
            return None
        pushes = self._pushes.pop(group)
        workers = tuple(sorted(pushes, key=lambda worker: worker.index))  # by rank: the sum is reproducible
        total = union([pushes[worker].popleft() for worker in workers])
        early = {worker: queue for worker, queue in pushes.items() if queue}  # whoever is one gradient ahead
        if early:
            self._pushes[group] = early
        return Gathered(group, workers, total)


__all__ = ["Gathered", "Gathering", "GroupTag", "pull"]
