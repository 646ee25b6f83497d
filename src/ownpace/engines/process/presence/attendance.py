"""Which ranks are there, as rank 0 has it: those that are gone, and those that are back and come late."""

from __future__ import annotations

from ownpace.engines.process.presence.roll import Roll
from ownpace.engines.process.talk.control import Refuse
from ownpace.engines.process.talk.rank_control import Agreed, Past, Together


class Attendance:
    """Who is there, and what all of them have come to together."""

    def __init__(self, num_ranks: int) -> None:
        self.roll = Roll(num_ranks)
        self.gone: set[int] = set()
        self.late: set[int] = set()
        """Ranks that are back, and have not come to a place with all others yet."""

    def take(self, rank: int, act: Together) -> Agreed | Refuse | None:
        """A rank has come to a place; returns what is to be said then, if anything."""
        is_next_loop = act.number == 0 and rank in self.late
        answer = self.roll.await_loop(rank, act) if is_next_loop else self.roll.take(rank, act)
        if isinstance(answer, Agreed):
            self.late -= set(answer.ranks)
        return answer

    def lose(self, rank: int) -> Agreed | Refuse | None:
        """A rank is gone, and the others go on; returns what to tell them, if they have been waiting for it alone."""
        self.late.discard(rank)
        self.gone.add(rank)
        return self.roll.lose(rank)

    def readmit(self, rank: int, progress: dict[str, float]) -> Past:
        """A rank was started again; returns what it has to know."""
        self.gone.discard(rank)
        self.late.add(rank)
        self.roll.rejoin(rank)
        acts, ranks = [what for what, _ in self.roll.past], [there for _, there in self.roll.past]
        return Past(acts, ranks, self.roll.fingerprint, progress)
