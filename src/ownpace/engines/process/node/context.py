"""What a node is given to work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ownpace.core.contract.errors import OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.reporter import Reporter, WallClock
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.channels import Wiring
from ownpace.engines.process.talk.control import Leaving
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.roster import Roster


@dataclass
class Orders:
    """What reaches this process from outside of the run: signals, and the death of a process that it needs."""

    stops: list[str] = field(default_factory=list)
    """Signals that asked it to end."""
    alarms: list[OwnpaceError] = field(default_factory=list)
    """Why it has to give up; raised as soon as a node looks."""
    gone: set[int] = field(default_factory=set)
    """Ranks that are gone: nothing that is sent to them arrives."""
    goes_on: bool = False
    """Whether the run goes on without ranks that are gone: the hub decides then, and they are no alarm."""
    leaves: bool = False
    """Whether a signal is for this process alone: the hub is told, and says what becomes of the run."""
    helpers: list[str] = field(default_factory=list)
    """The servers and communicators that end with this process."""
    is_told: bool = False
    """Whether the hub has been told of a signal."""

    def leaving(self) -> Leaving | None:
        """What the hub has to be told of a signal: once."""
        if self.is_told or not self.leaves or not self.stops:
            return None
        self.is_told = True
        return Leaving(self.stops[0], self.helpers)

    def raise_alarms(self) -> None:
        """Raise the first alarm, if there is one."""
        if self.alarms:
            alarm = self.alarms[0]
            again = type(alarm)(str(alarm))  # of its own: a traceback grows each time an error is raised
            again.blame = alarm.blame
            raise again


@dataclass(frozen=True)
class NodeContext:
    """What a node is given to work with. It stays the same for a whole generation of the run."""

    address: Address
    roster: Roster
    terms: RunTerms
    layout: Layout
    like: Tensor
    """An empty tensor of the parameters' type and device."""
    mailbox: Mailbox
    wiring: Wiring
    clock: WallClock
    reporter: Reporter
    orders: Orders
    is_evaluated: bool
    """Whether this node's parameters, among those of all replicas, are the ones that are evaluated and saved."""
    generation: int = 0
