"""What a rank that was started again has missed: the loops and calls that all others have been through.

Its script begins at the top. What the others have done by then is passed at once, in the same order; from there on it
is one of them. A script that asks how far the fleet is, and begins its loops there, goes straight to the running loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from ownpace.core.contract.errors import InputError
from ownpace.engines.process.presence.roll import LOOP, at_place, differences, do_not_fit
from ownpace.engines.process.talk.rank_control import Past, Together


class PastActs:
    """The places where all ranks were together before this one was started again."""

    def __init__(self, told: Past, rank: int) -> None:
        self._told = told
        self._rank = rank
        self.skips = False
        """Whether the script has asked how far the fleet is before its first loop."""
        self.progress: Mapping[str, float] = told.progress
        """How far the fleet is, as rank 0 knew it."""

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self._told.acts)

    @property
    def loops(self) -> int:
        """How many of them are loops."""
        return self._told.acts.count(LOOP)

    @property
    def last_loop(self) -> int:
        """Which of them is the latest loop, from 1; 0: there was none."""
        return max((number for number, what in enumerate(self._told.acts, 1) if what == LOOP), default=0)

    @property
    def in_loop(self) -> bool:
        """Whether that loop ran, as rank 0 knew it, or was about to."""
        return bool(self.progress.get("in_loop")) or self.progress.get("begun", 0) < self.loops

    def number_of_next(self, begun: int) -> int:
        """The number of the loop that this rank begins next, after `begun` loops."""
        if self.skips:
            begun = self.loops - self.in_loop
        return int(self.progress.get("before", 0)) + begun + 1

    def there(self, number: int) -> list[int]:
        """Who was at one of them."""
        return self._told.ranks[number - 1]

    def check(self, number: int, act: Together) -> None:
        """Raise if this rank comes to something else than the others did."""
        theirs = self._told.acts[number - 1]
        if theirs != act.what:
            before = self._told.acts[:number].count(LOOP)
            others = Together(number, theirs, before, {})
            raise InputError(
                f"this rank was started again: {at_place({self._rank: act})}, where {at_place({0: others})}; every "
                "rank must run the same loops and calls in the same order"
            )

    def check_loop(self, fingerprint: dict[str, str]) -> None:
        """Raise if the latest loop of the others is one over other data."""
        found = differences([self._told.fingerprint, fingerprint], [0, self._rank])
        if found:
            raise InputError(do_not_fit(found, " in the loop that runs"))
