"""A worker that does as the one it stands before, and keeps a record of what was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance.plain.compare import engine
from tests.conformance.plain.setting import Setting
from torch import Tensor

from ownpace import make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Event
from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import Gradient
from ownpace.testing.runs import with_worker


@dataclass
class Sum:
    """One worker's part in an all-reduce, and where it was computed."""

    gradient: Gradient
    versions: list[int]
    """Of the parameters at which each of its micro-batches was computed."""
    points: list[Tensor]
    """And those parameters, or the point in their place."""


@dataclass
class Committed:
    """One update, as one worker made it."""

    gradient: Gradient
    lr: float
    """The schedule's, before the update."""
    lr_scale: float
    advance: float | None
    before: Tensor
    after: Tensor


@dataclass
class Record:
    """What one worker asked for, in order."""

    sums: list[Sum] = field(default_factory=list)
    steps: list[Committed] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)
    """Where each gradient was computed."""
    held: list[Tensor] = field(default_factory=list)
    """Its parameters at that time."""


class Spied:
    """A worker that does as the one it stands before, and keeps a record."""

    def __init__(self, me: Worker, record: Record) -> None:
        self._me = me
        self._record = record
        self._begin()

    def __getattr__(self, name: str) -> object:
        return getattr(self._me, name)

    def _begin(self) -> None:
        """Start over: nothing has been computed for the next sum yet."""
        self._versions: list[int] = []
        self._points: list[Tensor] = []

    def gradient(self, samples=None, *, at=None, batch=None, plus=None):
        point = self._me.parameters if at is None else at
        self._versions.append(point.version)
        self._points.append(point.values)
        self._record.points.append(point.values)
        self._record.held.append(self._me.parameters.values)
        return self._me.gradient(samples, at=at, batch=batch, plus=plus)

    def all_reduce(self, body, group=None):
        self._record.sums.append(Sum(body, self._versions, self._points))
        self._begin()
        return self._me.all_reduce(body, group)

    async def step_by_layer(self, total, *, lr_scale=1.0, advance=None):
        gradient = await total
        self.step(gradient, lr_scale=lr_scale, advance=advance)
        return gradient

    def step(self, gradient, *, lr_scale=1.0, advance=None, memory=0):
        lr, before = self._me.lr, self._me.parameters.values
        self._me.step(gradient, lr_scale=lr_scale, advance=advance, memory=memory)
        self._record.steps.append(
            Committed(gradient, lr, lr_scale, advance, before, self._me.parameters.values),
        )


def spied(name: str, **parameters: object) -> tuple[Algorithm, dict[int, Record]]:
    """An algorithm, and what will be on record of each worker, by rank."""
    algorithm = make_algorithm(name, parameters)
    records: dict[int, Record] = {}

    async def worker(me):
        records[me.rank] = Record()
        spy: Any = Spied(me, records[me.rank])
        await algorithm.worker(spy)

    return with_worker(algorithm, worker), records


def watched(setting: Setting, name: str, **parameters: object) -> tuple[list[Event], list[Record]]:
    """The events of a run, and the record of each worker, by rank."""
    algorithm, records = spied(name, **parameters)
    outcome, events = engine(setting, algorithm)
    assert outcome.error is None
    return events, [records[rank] for rank in range(setting.num_workers)]
