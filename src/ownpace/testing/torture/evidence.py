"""A run and all that is known of it: its events, the books, its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.events import End, Event, Fault, Generation, Run
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines import Outcome
from ownpace.engines.virtual.faults import RESTART_S, SILENCE_S
from ownpace.fleet import PlannedFault
from ownpace.testing.torture.audit import Books
from ownpace.testing.torture.scenario import Scenario

E = TypeVar("E")


@dataclass(frozen=True)
class KeptCheckpoint:
    """A run between two generations."""

    state: PlainState
    events: int
    """How many there were by then."""
    books: Books


@dataclass(frozen=True)
class Evidence:
    """A run and all that is known of it."""

    scenario: Scenario
    outcome: Outcome
    events: Sequence[Event]
    books: Books
    checkpoints: Sequence[KeptCheckpoint] = ()
    earlier: Sequence[PlannedFault] = ()
    """What was planned before the run was resumed on another fleet."""

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def end(self) -> End:
        """The last record."""
        assert isinstance(self.events[-1], End)
        return self.events[-1]

    @property
    def header(self) -> Run:
        """The first record."""
        assert isinstance(self.events[0], Run)
        return self.events[0]

    @property
    def faults(self) -> Sequence[PlannedFault]:
        """All that was planned to happen."""
        return (*self.scenario.job.fleet.fault, *self.earlier)

    @property
    def may_part(self) -> bool:
        """Whether servers may have learnt from gradients of which others never got a layer.

        Layer by layer, a gradient has partly left when its machine dies, or when all others give up what they do. It is
        in no record then.
        """
        return bool(self.faults) and getattr(self.scenario.subject.algorithm, "by_layer", False)

    @property
    def most_workers(self) -> int:
        """How many there were at most."""
        later = [len(event.members) for event in self.of(Generation) if event.members is not None]
        return max([len(self.header.groups["workers"]), *later])

    @property
    def most_servers(self) -> int:
        """The same of servers."""
        return max(len(self.header.groups.get("servers", ())), len(self.scenario.job.servers))

    @property
    def error(self) -> OwnpaceError | None:
        """What ended it early."""
        return self.outcome.error

    @property
    def values(self) -> Tensor:
        """The final parameters, flat."""
        return torch.cat([value.reshape(-1) for value in self.outcome.model.values()])

    @property
    def deaths(self) -> list[str]:
        """Who died before the end: workers that were killed or silent for too long, and servers."""
        return [
            fault.worker
            for fault in self.faults
            if (died := died_s(fault)) is not None and died <= self.end.t and self.has(fault.worker)
        ]

    @property
    def too_few(self) -> bool:
        """Whether there were fewer workers at the end than there must be, or none that had the parameters."""
        job, now = self.scenario.job, self.end.t
        alive = {worker.name for worker in job.fleet.workers}
        for fault in job.fleet.fault:
            died, back = died_s(fault), fault.back_at_s
            if back is None and job.on_failure == "restart" and fault.kind == "kill":
                back = fault.at_s + RESTART_S
            if died is not None and died <= now and (back is None or back > now):
                alive.discard(fault.worker)
        if len(alive) < job.min_workers:
            return True
        # Those that are back know nothing of what was learnt.
        return not job.servers and bool(self.deaths)

    def has(self, name: str) -> bool:
        """Whether there is such a node: algorithms without servers do not mind what happens to one."""
        return not name.startswith("server-") or bool(self.scenario.job.servers)

    @property
    def broken_off(self) -> bool:
        """Whether a machine died when the budget was spent: then what is in flight is given up, and that is the end."""
        since, over = max((event.t for event in self.of(Generation)), default=-1.0), self.end.sums.seconds
        deaths = [died_s(fault) for fault in self.faults]
        return since >= over or any(died is not None and max(since, over) <= died <= self.end.t for died in deaths)

    def killed(self, role: str) -> list[Fault]:
        """Nodes whose names begin so and that were killed or cut off."""
        return [fault for fault in self.of(Fault) if fault.what in ("kill", "cut") and fault.who.startswith(role)]


Complaints = Iterator[str]


def died_s(fault: PlannedFault) -> float | None:
    """When a fault is a death, if it is one: a machine that was silent for a while only is none."""
    if fault.kind == "kill":
        return fault.at_s
    silent = fault.kind == "cut" and (fault.back_at_s is None or fault.back_at_s > fault.at_s + SILENCE_S)
    return fault.at_s + SILENCE_S if silent else None
