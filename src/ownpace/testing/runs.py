"""One run, with all its events, in one call."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any

from torch import Tensor

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.events import Event
from ownpace.core.contract.roles import Worker
from ownpace.core.learning.optimizer import OptimizerSpec
from ownpace.engines import ENGINES, Job, Outcome
from ownpace.fleet import Fleet, paces
from ownpace.tasks import Quadratic


def run_on(engine: str, algorithm: Algorithm, fleet: Fleet | None = None, **job: Any) -> tuple[Outcome, list[Event]]:
    """Run an algorithm, by default on a small parabola and paces 4:2:1:1, and keep all its events.

    Keyword arguments are the fields of `ownpace.engines.Job`; `lr`, `momentum`, `nesterov`, `weight_decay` and
    `clip_norm` go to SGD. Give a list as `events` to look at them during the run.
    """
    names = ("lr", "momentum", "nesterov", "weight_decay", "clip_norm")
    settings = {name: job.pop(name) for name in names if name in job}
    job.setdefault("optimizer", OptimizerSpec(**settings))
    job.setdefault("task", Quadratic())
    job.setdefault("samples", None if "seconds" in job else 2000)
    job.setdefault("batch_size", 8)
    events: list[Event] = job.pop("events", [])
    fleet = fleet or paces(4000, 2000, 1000, 1000, jitter=0.0)
    outcome = ENGINES[engine](Job(algorithm=algorithm, fleet=fleet, **job), events.append, None)
    return outcome, events


def simulate(algorithm: Algorithm, fleet: Fleet | None = None, **job: Any) -> tuple[Outcome, list[Event]]:
    """The same in virtual time."""
    return run_on("virtual", algorithm, fleet, **job)


def with_worker(algorithm: Algorithm, worker: Callable[[Worker], Awaitable[None]]) -> Algorithm:
    """The same algorithm with another worker, which may call that of the first: to watch it, or to disturb it."""

    async def in_its_place(self: Algorithm, me: Worker) -> None:
        await worker(me)

    # A copy of a subclass, made without calling __init__: the fields of a user's dataclass need not be its arguments.
    twin = copy.copy(algorithm)
    twin_class = type(type(algorithm).__name__, (type(algorithm),), {"worker": in_its_place, "__slots__": ()})
    object.__setattr__(twin, "__class__", twin_class)
    return twin


def watched(algorithm: Algorithm) -> tuple[Algorithm, list[Tensor]]:
    """The same algorithm, and what will be the final parameters of its workers, in the order in which they end."""
    ends: list[Tensor] = []

    async def worker(me: Worker) -> None:
        await algorithm.worker(me)
        ends.append(me.parameters.values)

    return with_worker(algorithm, worker), ends
