"""What the hub is made of, and how it talks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ownpace.engines.process.hub.config import HubConfig
from ownpace.engines.process.hub.evaluator import Evaluator
from ownpace.engines.process.hub.generations import Generations
from ownpace.engines.process.hub.journal import Journal
from ownpace.engines.process.meet.complaints import Complaints
from ownpace.engines.process.meet.restarts import Restarts
from ownpace.engines.process.meet.run_state import StateCollector
from ownpace.engines.process.talk.control import Control
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.wire import Packet
from ownpace.engines.roster import Roster

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubParts:
    """All that takes part in leading a run."""

    mailbox: Mailbox
    roster: Roster
    """Of the whole fleet, whoever takes part now."""
    config: HubConfig
    complaints: Complaints
    journal: Journal
    evaluator: Evaluator | None
    restarts: Restarts
    collector: StateCollector
    generations: Generations

    @classmethod
    def of(cls, mailbox: Mailbox, roster: Roster, config: HubConfig) -> HubParts:
        """Those of a run."""
        restarts, collector = Restarts(), StateCollector()
        evaluator = None if config.make_evaluator is None else config.make_evaluator()
        generations = Generations(config.elasticity, partial(tell, mailbox), restarts, collector)
        journal = Journal(roster, config)
        return cls(mailbox, roster, config, Complaints(), journal, evaluator, restarts, collector, generations)

    @property
    def members(self) -> set[str]:
        """The nodes that are there."""
        return self.generations.members.there

    @property
    def has_started(self) -> bool:
        """Whether time has begun."""
        return self.generations.has_started

    def tell(self, control: Control, *names: str) -> None:
        """Tell these nodes, or all that are there."""
        tell(self.mailbox, control, names or sorted(self.members))


def tell(mailbox: Mailbox, control: Control, names: Iterable[str]) -> None:
    """Tell these nodes something about the run."""
    log.info("%s to %s", type(control).__name__, names)
    for name in names:
        mailbox.send(name, Packet(control=control))
