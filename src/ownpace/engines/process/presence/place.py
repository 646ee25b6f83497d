"""How far a rank has come on the way that all ranks take: a loop, a barrier, another loop, …, the end.

The places where all have to be together are counted from 1. At each a rank waits until rank 0 says that all have come.
A rank that was started again passes those that the others have been at before (`presence.past`), up to the loop that
runs.
"""

from __future__ import annotations

from ownpace.engines.process.presence.past import PastActs
from ownpace.engines.process.presence.roll import LOOP
from ownpace.engines.process.talk.rank_control import Together


class RankPlace:
    """Where one rank is, and whether the others are there, too."""

    def __init__(self, num_ranks: int) -> None:
        self.number = 0
        """At how many places this rank was together with the others, that to which it has come included."""
        self.agreed = 0
        """The latest at which all were."""
        self.there: list[int] = list(range(num_ranks))
        """The ranks that came to it."""
        self.loops = 0
        """How many loops over the data this rank has begun."""
        self.past: PastActs | None = None
        """What this rank has missed, if it was started again."""
        self.awaits_loop = False
        """Whether it was started again and waits for the next loop, whatever the others come to before."""
        self._act: Together | None = None
        """What it has come to latest."""

    @property
    def is_waiting(self) -> bool:
        """Whether the others are not there yet."""
        return self.awaits_loop or self.agreed < self.number

    @property
    def is_behind(self) -> bool:
        """Whether the others have been at the next place already."""
        return self.past is not None and self.number < self.past.number

    def join_late(self) -> None:
        """All others have joined."""
        self.number = self.agreed = 1

    def come_to_next(self, what: str, fingerprint: dict[str, str]) -> Together | None:
        """This rank has come to the next place.

        Returns:
            What to tell rank 0; None: the others have been there before this rank was started again.

        Raises:
            InputError: They have been elsewhere.
        """
        is_behind, past = self.is_behind, self.past
        self.number += 1
        self._act = act = Together(self.number, what, self.loops, fingerprint)
        if not is_behind or past is None:
            return act
        past.check(self.number, act)
        self.agreed, self.there = self.number, past.there(self.number)
        return None

    def take_agreed(self, number: int, ranks: list[int], rank: int) -> None:
        """All of these ranks have come to a place; `rank` is this one."""
        if self.awaits_loop:
            # The others may come to more before the next loop.
            self.number = self.agreed = number
            self.awaits_loop = rank not in ranks
        elif number == self.number and rank in ranks:
            self.agreed, self.there = number, ranks

    def is_loop_over(self, fingerprint: dict[str, str]) -> bool:
        """Whether the others have been through the loop that this rank has passed; if they are in it, it must fit."""
        assert self.past is not None
        if self.number < self.past.last_loop:
            return True
        self.past.check_loop(fingerprint)
        return False

    def skip_to_loop(self, past: PastActs, fingerprint: dict[str, str]) -> Together | None:
        """Pass whatever all others have come to, up to the loop that runs or is the next.

        Returns:
            What to tell rank 0, if it is the next.
        """
        past.skips = False
        self.loops = past.loops
        if past.in_loop:
            past.check_loop(fingerprint)
            self.number = self.agreed = past.last_loop
            return None
        self.loops += 1
        self.awaits_loop = True
        return Together(0, LOOP, self.loops, fingerprint)

    def catch_up(self) -> Together | None:
        """This rank was away, and knows now what it has missed; returns what to tell rank 0 again, if anything."""
        if self.past is None or self.agreed >= self.number:
            return None
        # It was waiting for the others: they have been there meanwhile, or have forgotten that it has come.
        if self.number > self.past.number:
            return self._act
        self.agreed, self.there = self.number, self.past.there(self.number)
        return None
