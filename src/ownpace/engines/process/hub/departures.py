"""Ranks that a signal asks to end: whether the others go on without them, and when they go.

    Leaving ──(rank 0 has got a signal, too)────► the run ends in order, with all of them
            ──(the others cannot go on)─────────► likewise
            ──(a moment later)──────────────────► a border in good order, at which they are let go
            ──(it takes too long to come there)─► they are let go at once, and the others are as after a death

Whoever is gone for good before that, killed or by a second signal, has left, too: the others go on at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ownpace.core.contract.errors import Interrupted
from ownpace.engines.process.hub.generations import Generations
from ownpace.engines.process.talk.control import Leaving

ALL_ASKED_S = 1.0
"""Ctrl-C and batch systems signal all ranks, one after the other: how long after the first of them the last may be."""
TO_BORDER_S = 5.0
"""How long after that a border may take to come: with what follows, less than a signalled process has patience."""


@dataclass(frozen=True)
class _Asked:
    leaving: Leaving
    since_s: float


class Departures:
    """Who is to leave."""

    def __init__(self, generations: Generations, now: Callable[[], float] = time.monotonic) -> None:
        self.is_moot = False
        """Whether the run ends anyway."""
        self.ends_run = ""
        """Who has got a signal so that the run has to end, in words; nothing: nobody."""
        self._generations = generations
        self._now = now
        self._asked: dict[str, _Asked] = {}
        self._border = -1
        """The latest generation that was asked to come to a border."""

    def take(self, name: str, leaving: Leaving) -> None:
        """A signal asks a worker to end."""
        self._asked[name] = _Asked(leaving, self._now())

    def forget(self, name: str) -> None:
        """Another process has this name now."""
        self._asked.pop(name, None)

    def left(self, name: str) -> Interrupted | None:
        """What is to be said of a node that is gone, if a signal had asked it to end."""
        if name not in self._asked:
            return None
        error = Interrupted(f"{name} left after {self._asked[name].leaving.signal}")
        error.blame = name
        return error

    def signal(self, name: str) -> str:
        """What asked a worker to end."""
        return self._asked[name].leaving.signal

    def look(self) -> list[str]:
        """See to what is due; returns the nodes that are to go at once."""
        generations, asked = self._generations, self._there()
        if not asked or self.is_moot or generations.phase == "closing":
            return []
        if not generations.can_let_go(self._with_helpers(asked)):
            who = " and ".join(f"{name} got {each.leaving.signal}" for name, each in asked.items())
            self.ends_run = f"{who}, and the others cannot go on without {'it' if len(asked) == 1 else 'them'}"
            return []
        if self._due(asked) and self._border < generations.number and generations.phase == "running":
            self._border = generations.number
            generations.ask_for_border()
        return self._with_helpers(self._due(asked, TO_BORDER_S))

    def at_border(self) -> list[str]:
        """All workers have ended their generation: the nodes that are let go."""
        asked = self._there()
        if self.is_moot or not self._generations.can_let_go(self._with_helpers(asked)):
            return []
        return self._with_helpers(self._due(asked))

    def _there(self) -> dict[str, _Asked]:
        there = self._generations.members.there
        return {name: asked for name, asked in self._asked.items() if name in there}

    def _due(self, asked: dict[str, _Asked], later_s: float = 0.0) -> dict[str, _Asked]:
        """Those that were asked to end long enough ago."""
        until_s = self._now() - ALL_ASKED_S - later_s
        return {name: each for name, each in asked.items() if each.since_s <= until_s}

    def _with_helpers(self, asked: dict[str, _Asked]) -> list[str]:
        return [node for name, each in asked.items() for node in (name, *each.leaving.helpers)]
