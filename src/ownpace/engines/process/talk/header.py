"""What a sum carries next to its tensor: each member writes into places of its own, and all of it is summed along.

    0                stop: how many members want the run to end
    1 …              one entry for each member: see `Entry`
    then             notes, by the alphabet of their names
    then             zeros, up to a multiple of 16

Places that belong to one member are zero in every other's header, so a sum keeps them as they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ownpace.core.contract.values import NO_NOTES, Contribution, Gradient, Notes

_NOTES = 32
# 64 bytes in float32: the gradient behind the header stays aligned.
_ALIGN = 16
_LOSS = 2


class Entry(NamedTuple):
    """One member's places, but for the versions of its shards, its counts of samples and its rates, which follow."""

    present: float = 0.0
    """1 if it contributed a gradient."""
    samples: float = 0.0
    loss: float = 0.0
    seconds: float = 0.0
    came_s: float = 0.0
    """When it came, in the run's time."""
    names: float = 0.0
    """A checksum of the names of its notes: all members must note the same things."""
    partial: float = 0.0
    """1 if layers may be without a gradient."""


@dataclass(frozen=True)
class Said:
    """What the members of a sum said, all together."""

    stop: bool
    last_came_s: float
    samples: int
    loss: float
    seconds: float
    versions: tuple[int, ...]
    notes: Notes
    contributions: tuple[Contribution, ...]
    rates: tuple[float, ...]
    """Of the first member."""
    partial: bool
    counts: tuple[int, ...]


class SumHeader:
    """The places of one group's headers, as one member writes and reads them."""

    def __init__(self, member: int, num_members: int, num_shards: int, num_rates: int, num_counts: int = 0) -> None:
        self._num_members = num_members
        self._num_shards = num_shards
        self._num_counts = num_counts
        self._width = len(Entry._fields) + num_shards + num_counts + num_rates
        self._start = 1 + member * self._width
        self._first_note = 1 + num_members * self._width
        self._most_notes = _NOTES + 2 * num_members
        self.size = -(-(self._first_note + self._most_notes) // _ALIGN) * _ALIGN
        """Of a header, in numbers."""
        self.loss_at = self._start + _LOSS
        """Where this member's loss is: a GPU writes it there, without anything waiting for it."""

    def write(self, gradient: Gradient | None, stop: bool, came_s: float, rates: Sequence[float]) -> list[float]:
        """This member's header; without a gradient, it only says that it came and whether it wants to stop."""
        numbers = [0.0] * self.size
        numbers[0] = float(stop)
        entry = Entry(came_s=came_s)
        if gradient is not None:
            notes = gradient.notes
            if len(notes) > self._most_notes:
                raise ValueError(f"{len(notes)} notes; at most {self._most_notes} can travel with a gradient")
            loss = gradient.loss if isinstance(gradient.loss, float | int) else 0.0
            # As floats, even in float32: counts and versions are exact up to 2²⁴.
            entry = Entry(
                1.0, gradient.samples, loss, gradient.seconds, came_s, checksum(notes), float(gradient.partial)
            )
            after = self._start + len(entry)
            said = [*gradient.versions, *(gradient.counts or (0,) * self._num_counts), *rates]
            numbers[after : after + len(said)] = said
            numbers[self._first_note : self._first_note + len(notes)] = [notes[name] for name in sorted(notes)]
        numbers[self._start : self._start + len(entry)] = entry
        return numbers

    def read(self, numbers: Sequence[float], noted: Notes) -> Said:
        """What all members said. `noted` is what this member noted itself: it has the names of what was summed."""
        entries = [self._entry(numbers, member) for member in range(self._num_members)]
        present = [(entry, versions) for entry, versions, _, _ in entries if entry.present]
        versions = zip(*(versions for _, versions in present), strict=True)
        return Said(
            stop=numbers[0] > 0,
            last_came_s=max(entry.came_s for entry, *_ in entries),
            samples=round(sum(entry.samples for entry, _ in present)),
            loss=math.fsum(entry.loss for entry, _ in present),
            seconds=math.fsum(entry.seconds for entry, _ in present),
            versions=tuple(round(min(column)) for column in versions) or (0,) * self._num_shards,
            notes=self._notes(numbers, [entry for entry, _ in present], noted),
            contributions=tuple(Contribution(round(entry.samples), entry.seconds) for entry, *_ in entries),
            rates=tuple(entries[0][3]),
            partial=any(entry.partial for entry, _ in present),
            counts=tuple(round(sum(column)) for column in zip(*(counts for _, _, counts, _ in entries), strict=True)),
        )

    def _entry(
        self, numbers: Sequence[float], member: int
    ) -> tuple[Entry, Sequence[float], Sequence[float], Sequence[float]]:
        """A member's entry, its versions, its counts, its rates."""
        start = 1 + member * self._width
        places = numbers[start : start + self._width]
        fixed = len(Entry._fields)
        counts = fixed + self._num_shards
        rates = counts + self._num_counts
        return Entry(*places[:fixed]), places[fixed:counts], places[counts:rates], places[rates:]

    def _notes(self, numbers: Sequence[float], present: Sequence[Entry], noted: Notes) -> Notes:
        sums = {entry.names for entry in present}
        if sums <= {0.0}:
            return NO_NOTES
        if sums != {checksum(noted)}:
            raise ValueError("the members of a sum noted different things; all must use the same names")
        return {name: numbers[self._first_note + place] for place, name in enumerate(sorted(noted))}


def checksum(notes: Notes) -> float:
    """A number for the names of some notes that even float32 holds exactly; 0 for none."""
    return float(1 + zlib.crc32("\0".join(sorted(notes)).encode()) % (1 << 23)) if notes else 0.0
