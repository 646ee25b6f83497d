"""Which nodes do not answer: their connection has ended, or heartbeats on it are not answered."""

from __future__ import annotations

import time

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.meet.environment import silence_s
from ownpace.engines.process.talk.mailbox import Mailbox

_EXPLAIN_S = 0.5
"""How long after a connection has ended the death of its process may be found, or the connection be made anew."""


class SilenceWatch:
    """Finds the nodes that do not answer. The system knows of processes that ended here, and may say so first."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._suspects: dict[str, float] = {}

    def forget(self, name: str) -> None:
        """It is known what became of this node."""
        self._suspects.pop(name, None)

    def found(self) -> list[PeerLost]:
        """An error for each node that is gone."""
        now, errors = time.monotonic(), []
        for name in self._mailbox.lost():
            self._suspects.setdefault(name, now)
        for name, since_s in list(self._suspects.items()):
            if self._mailbox.is_up(name):
                del self._suspects[name]
            elif now > since_s + _EXPLAIN_S:
                gone = PeerLost(f"{name} is gone: it did not answer for {silence_s():g} s, or its connection ended")
                gone.blame = name
                errors.append(gone)
        return errors
