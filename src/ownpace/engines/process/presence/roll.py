"""Where each rank is: rank 0 compares the places at which all ranks have to be together.

Such a place is the beginning of a loop over the data, a barrier or another call between ranks, and the end. Each rank
comes to them in its own time, but all have to come to the same ones in the same order: a rank that goes elsewhere
would leave the others waiting for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ownpace.core.contract.errors import ranks_in_words
from ownpace.engines.process.talk.control import Refuse
from ownpace.engines.process.talk.rank_control import Agreed, Together

JOIN, LOOP, LEAVE = "ownpace.join", "loop", "leave"
"""The places that are not calls of a method."""
_PATIENCE_S = 10.0
"""How long ranks are waited for before that is said."""
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


@dataclass
class _Meeting:
    """Who has come to it."""

    since_s: float
    came: dict[int, Together] = field(default_factory=dict)
    is_told: bool = False
    """Whether it was said that ranks are waited for."""


class Roll:
    """Which ranks have come to which place."""

    def __init__(self, num_ranks: int, now: Callable[[], float] = time.monotonic) -> None:
        self._ranks = set(range(num_ranks))
        self._now = now
        self._places: dict[int, _Meeting] = {}
        self._to_next_loop: dict[int, Together] = {}
        self.past: list[tuple[str, list[int]]] = []
        """What all have come to so far, and who was there."""
        self.fingerprint: dict[str, str] = {}
        """Of the latest loop."""

    def take(self, rank: int, act: Together) -> Agreed | Refuse | None:
        """A rank has come; returns what all ranks are to be told, if that is known now."""
        place = self._places.setdefault(act.number, _Meeting(self._now()))
        place.came[rank] = act
        # At once, not when all have come: a rank that is elsewhere may never come to this place.
        if len({each.what for each in place.came.values()}) > 1:
            return Refuse(elsewhere(place.came))
        return self._settled(act.number, place)

    def lose(self, rank: int) -> Agreed | None:
        """A rank is gone, and the others go on; returns what to tell them, if they have been waiting for it alone."""
        self._ranks.discard(rank)
        self._to_next_loop.pop(rank, None)
        for number, place in list(self._places.items()):
            place.came.pop(rank, None)
            answer = self._settled(number, place) if place.came else None
            if isinstance(answer, Agreed):
                return answer
        return None

    def rejoin(self, rank: int) -> None:
        """A rank is back: from now on it is waited for."""
        self._ranks.add(rank)

    def await_loop(self, rank: int, act: Together) -> Agreed | Refuse | None:
        """A rank that is back waits for the next loop, whatever the others come to before; returns as `take`."""
        self._to_next_loop[rank] = act
        for number, place in list(self._places.items()):
            answer = self._settled(number, place) if place.came else None
            if answer is not None:
                return answer
        return None

    def _settled(self, number: int, place: _Meeting) -> Agreed | Refuse | None:
        """What all are to be told once all who are there have come."""
        what = next(iter(place.came.values())).what
        if what == LOOP:
            place.came.update(self._to_next_loop)
        there = sorted(self._ranks if what == LOOP else self._ranks - self._to_next_loop.keys())
        if not place.came.keys() >= set(there):
            return None
        del self._places[number]
        first = place.came[there[0]]
        found = differences([place.came[each].fingerprint for each in there], there)
        if found:
            where = f" in their {ordinal(first.loops)} loop over fleet.batches" if first.loops > 1 else ""
            return Refuse(do_not_fit(found, where))
        if what == LOOP:
            self.fingerprint = first.fingerprint
            self._to_next_loop.clear()
        self.past.append((what, there))
        return Agreed(number, there)

    def late(self) -> list[str]:
        """What to say about ranks that others have been waiting for; each place is told of once."""
        lines = []
        for place in self._places.values():
            if not place.is_told and self._now() > place.since_s + _PATIENCE_S:
                place.is_told = True
                awaited = ranks_in_words(self._ranks - place.came.keys())
                lines.append(f"{at_place(place.came)}; still waiting for {awaited} after {_PATIENCE_S:g} s")
        return lines


def elsewhere(came: Mapping[int, Together]) -> str:
    """Who is where, if not all are at the same place."""
    groups: dict[str, dict[int, Together]] = {}
    for rank, act in sorted(came.items()):
        groups.setdefault(act.what, {})[rank] = act
    # Who has left comes first: that is most often the mistake.
    where = [at_place(group) for _, group in sorted(groups.items(), key=lambda one: (one[0] != LEAVE, min(one[1])))]
    same = "run the same loops and calls in the same order"
    if set(groups) <= {LOOP, LEAVE}:
        # Scripts that begin their data anew until they have had a number of batches come to this.
        same = "run the same loops: end them with updates=…, or by fleet.updates, not after N batches of one rank"
    return f"{', '.join(where)}; every rank must {same}"


def at_place(came: Mapping[int, Together]) -> str:
    """Where some ranks are, which have come to the same place."""
    act, who = next(iter(came.values())), ranks_in_words(came)
    if act.what == LEAVE:
        return f"{who} left after {act.loops} loop{'s' * (act.loops != 1)} over fleet.batches"
    if act.what == LOOP:
        return f"{who} began {'its' if len(came) == 1 else 'their'} {ordinal(act.loops)} loop over fleet.batches"
    return f"{who} called {act.what}"


def ordinal(number: int) -> str:
    """In words, as far as they are short."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    return f"{number}{'th' if number % 100 in (11, 12, 13) else _ENDINGS.get(number % 10, 'th')}"


def do_not_fit(found: Sequence[str], where: str = "") -> str:
    """The refusal of ranks that differ in these ways."""
    return f"the ranks do not fit together{where}: {'; '.join(found)}; start all of them alike"


def differences(fingerprints: Sequence[Mapping[str, str]], ranks: Sequence[int] | None = None) -> list[str]:
    """How the workers, in order of rank, differ from the first, in words; `ranks` are theirs, if not 0, 1, …."""
    found = []
    by_rank = dict(zip(range(len(fingerprints)) if ranks is None else ranks, fingerprints, strict=True))
    for key, value in fingerprints[0].items():
        others = [rank for rank, fingerprint in by_rank.items() if fingerprint.get(key) != value]
        if others:
            theirs = by_rank[others[0]].get(key, "nothing")
            found.append(f"the {key} of {ranks_in_words(others)} is {theirs}, that of rank 0 is {value}")
    return found
