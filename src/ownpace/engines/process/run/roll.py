"""Where each rank is: rank 0 compares the places at which all ranks have to be together.

Such a place is the beginning of a loop over the data, a barrier or another call between ranks, and the end. Each rank
comes to them in its own time, but all have to come to the same ones in the same order: a rank that goes elsewhere
would leave the others waiting for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ownpace.engines.process.talk.control import Agreed, Refuse, Together

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
        self._num_ranks = num_ranks
        self._now = now
        self._places: dict[int, _Meeting] = {}

    def take(self, rank: int, act: Together) -> Agreed | Refuse | None:
        """A rank has come; returns what all ranks are to be told, if that is known now."""
        place = self._places.setdefault(act.number, _Meeting(self._now()))
        place.came[rank] = act
        # At once, not when all have come: a rank that is elsewhere may never come to this place.
        if len({each.what for each in place.came.values()}) > 1:
            return Refuse(elsewhere(place.came))
        if len(place.came) < self._num_ranks:
            return None
        del self._places[act.number]
        found = differences([place.came[each].fingerprint for each in range(self._num_ranks)])
        where = f" in their {ordinal(act.loops)} loop over fleet.batches" if act.loops > 1 else ""
        return Refuse(do_not_fit(found, where)) if found else Agreed(act.number)

    def late(self) -> list[str]:
        """What to say about ranks that others have been waiting for; each place is told of once."""
        lines = []
        for place in self._places.values():
            if not place.is_told and self._now() > place.since_s + _PATIENCE_S:
                place.is_told = True
                missing = [rank for rank in range(self._num_ranks) if rank not in place.came]
                lines.append(f"{_at(place.came)}; waiting for {ranks_in_words(missing)} since {_PATIENCE_S:g} s")
        return lines


def elsewhere(came: Mapping[int, Together]) -> str:
    """Who is where, if not all are at the same place."""
    groups: dict[str, dict[int, Together]] = {}
    for rank, act in sorted(came.items()):
        groups.setdefault(act.what, {})[rank] = act
    # Who has left comes first: that is most often the mistake.
    where = [_at(group) for _, group in sorted(groups.items(), key=lambda one: (one[0] != LEAVE, min(one[1])))]
    same = "run the same loops" if set(groups) <= {LOOP, LEAVE} else "run the same loops and calls in the same order"
    return f"{', '.join(where)}; every rank must {same}"


def _at(came: Mapping[int, Together]) -> str:
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


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Some ranks, by their numbers."""
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def do_not_fit(found: Sequence[str], where: str = "") -> str:
    """The refusal of ranks that differ in these ways."""
    return f"the ranks do not fit together{where}: {'; '.join(found)}; start all of them alike"


def differences(fingerprints: Sequence[Mapping[str, str]]) -> list[str]:
    """How the workers, in order of rank, differ from the first, in words."""
    found = []
    for key, value in fingerprints[0].items():
        others = [rank for rank, fingerprint in enumerate(fingerprints) if fingerprint.get(key) != value]
        if others:
            theirs = fingerprints[others[0]].get(key, "nothing")
            found.append(f"the {key} of {ranks_in_words(others)} is {theirs}, that of rank 0 is {value}")
    return found
