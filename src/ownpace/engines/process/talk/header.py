"""What a sum carries next to its tensor: each member writes into places of its own, and all of it is summed along.

    0                stop: how many members want the run to end
    1 …              one entry for each member: see `Entry`; the versions of its shards follow, and its counts
    then             settings: a mark, then the numbers of the optimizer's groups, exact; only one member writes them
    then             sources: of each worker of the run, how many of its samples are used up
    then             notes, by the alphabet of their names
    then             zeros, up to a multiple of 16

Places that belong to one member are zero in every other's header, so a sum keeps them as they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import NO_NOTES, Contribution, Gradient, Notes, Sources

Numbers = npt.NDArray[np.float32 | np.float64]
_NOTES = 32
# 64 bytes in float32: the gradient behind the header stays aligned.
_ALIGN = 16
_PIECES = 4
"""A number in float64 travels as this many integers of 16 bits, which even float32 holds exactly."""


class Entry(NamedTuple):
    """One member's places. Another is one line here, and one in `of`."""

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
    used: float = 0.0
    """Samples that it is done with."""
    through: float = 0.0
    """How much of the vector had been summed when its backward pass was over."""

    @classmethod
    def of(cls, gradient: Gradient, came_s: float, through: float) -> Entry:
        """Of a member that contributes this. As floats, even in float32: counts and versions are exact up to 2²⁴."""
        return cls(
            present=1.0,
            samples=gradient.samples,
            # On a GPU it is not known here: see `loss_at`.
            loss=gradient.loss if isinstance(gradient.loss, float | int) else 0.0,
            seconds=gradient.seconds,
            came_s=came_s,
            names=checksum(gradient.notes),
            partial=gradient.partial,
            used=gradient.new_samples + gradient.dropped,
            through=through,
        )


_FIXED = len(Entry._fields)


class Said(NamedTuple):
    """What the members of a sum said, all together."""

    stop: bool
    last_came_s: float
    samples: int
    loss: float
    seconds: float
    versions: tuple[int, ...]
    notes: Notes
    contributions: tuple[Contribution, ...]
    settings: tuple[float, ...]
    """Of the member that wrote them; none, if no member did."""
    partial: bool = False
    counts: tuple[int, ...] = ()
    sources: Sources = ()
    through: float = 0.0
    """Of all members' vectors, how much had been summed when their backward passes were over: the mean."""


class SumHeader:
    """The places of one group's headers, as one member writes and reads them."""

    def __init__(
        self,
        member: int,
        num_members: int,
        num_shards: int,
        num_settings: int,
        num_counts: int = 0,
        num_workers: int = 0,
        *,
        double: bool = False,
    ) -> None:
        self._num_members = num_members
        self._num_shards = num_shards
        self._counts_at = _FIXED + num_shards
        self._width = self._counts_at + num_counts
        self._start = 1 + member * self._width
        first_setting = 1 + num_members * self._width
        self._settings = SettingsSection(first_setting, num_settings)
        self._first_source = first_setting + self._settings.size
        self._first_note = self._first_source + num_workers
        self._most_notes = _NOTES + 2 * num_members
        self.size = -(-(self._first_note + self._most_notes) // _ALIGN) * _ALIGN
        """Of a header, in numbers."""
        self.loss_at = self._start + Entry._fields.index("loss")
        """Where this member's loss is: a GPU writes it there, without anything waiting for it."""
        self._empty: Numbers = np.zeros(self.size, np.float64) if double else np.zeros(self.size, np.float32)

    def write(
        self,
        gradient: Gradient | None,
        stop: bool,
        came_s: float,
        settings: Sequence[float],
        through: float = 0.0,
        into: Numbers | None = None,
    ) -> Numbers:
        """This member's header; without a gradient, it only says that it came and whether it wants to stop.

        Args:
            gradient: What it contributes.
            stop: Whether it wants the run to end.
            came_s: When it came.
            settings: Of the optimizer's groups, if this member is the one that writes them.
            through: How much of its vector had been summed when its backward pass was over.
            into: Where to write it (None: into new memory).
        """
        written = np.empty_like(self._empty) if into is None else into
        written[:] = self._empty
        written[0] = stop
        if gradient is None:
            written[self._start : self._start + _FIXED] = Entry(came_s=came_s)
        else:
            # Counts of no samples may be missing.
            entry = (*Entry.of(gradient, came_s, through), *gradient.versions, *gradient.counts)
            written[self._start : self._start + len(entry)] = entry
            for rank, used in gradient.sources:
                written[self._first_source + rank] = used
            if gradient.notes:
                self._write_notes(written, gradient.notes)
        if settings:
            self._settings.write(written, settings)
        return written

    def _write_notes(self, written: Numbers, notes: Notes) -> None:
        if len(notes) > self._most_notes:
            raise ValueError(f"{len(notes)} notes; at most {self._most_notes} can travel with a gradient")
        written[self._first_note : self._first_note + len(notes)] = [notes[name] for name in sorted(notes)]

    def read(self, summed: Numbers, noted: Notes) -> Said:
        """What all members said. `noted` is what this member noted itself: it has the names of what was summed.

        Raises:
            WireError: No member says that: a count is no number.
        """
        # For every sum, so by columns of a plain list, and with few calls: a few microseconds add up.
        numbers = summed[: self._first_note].tolist()
        end, width = 1 + self._num_members * self._width, self._width
        columns = [numbers[at:end:width] for at in range(1, 1 + width)]
        present, all_samples, _, all_seconds, came_s, _, _, used, _ = columns[:_FIXED]
        # Members without a gradient have only come.
        said = columns if all(present) else [list(compress(column, present)) for column in columns]
        _, _, losses, seconds, _, names, partial, _, through = said[:_FIXED]
        versions = [min(column) for column in said[_FIXED : self._counts_at] if column]
        samples = _whole(all_samples)
        return Said(
            stop=numbers[0] > 0,
            last_came_s=max(came_s),
            samples=sum(samples),
            loss=_total(losses),
            seconds=_total(seconds),
            versions=tuple(_whole(versions)) or (0,) * self._num_shards,
            notes=self._notes(summed, names, noted) if any(names) else NO_NOTES,
            contributions=tuple(map(Contribution, samples, all_seconds, _whole(used))),
            settings=self._settings.read(summed),
            partial=any(partial),
            counts=tuple(_whole([sum(column) for column in columns[self._counts_at :]])),
            sources=tuple([each for each in enumerate(_whole(numbers[self._first_source :])) if each[1]]),
            through=sum(through) / max(1, len(through)),
        )

    def _notes(self, summed: Numbers, names: Sequence[float], noted: Notes) -> Notes:
        if set(names) != {checksum(noted)}:
            raise ValueError("the members of a sum noted different things; all must use the same names")
        values = summed[self._first_note : self._first_note + len(noted)].tolist()
        return dict(zip(sorted(noted), values, strict=True))


class SettingsSection:
    """The part of a header that holds the settings of the optimizer's groups, bit for bit.

    They rarely change, so what was written or read last is kept.
    """

    def __init__(self, start: int, num_settings: int) -> None:
        self.size = 1 + _PIECES * num_settings if num_settings else 0
        """In numbers of the header."""
        self._part = slice(start, start + self.size)
        self._given: Sequence[float] = ()
        self._written: Numbers = np.zeros(0)
        self._came = b""
        self._read: tuple[float, ...] = ()

    def write(self, header: Numbers, settings: Sequence[float]) -> None:
        """Put settings in their places."""
        # The same object has the same numbers: `GroupSettings.read` returns tuples.
        if settings is not self._given:
            pieces = np.array(settings, "<f8").view("<u2")
            self._given, self._written = settings, np.concatenate(([1.0], pieces)).astype(header.dtype)
        header[self._part] = self._written

    def read(self, summed: Numbers) -> tuple[float, ...]:
        """What is there; nothing, if no member has written any."""
        part = summed[self._part]
        came = part.tobytes()
        if came != self._came:
            self._came = came
            self._read = tuple(part[1:].astype("<u2").view("<f8").tolist()) if part[0] else ()
        return self._read


def _total(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except (ValueError, OverflowError):  # ∞ − ∞, or beyond what a number can be: training has diverged
        return math.nan


def _whole(counts: Sequence[float]) -> list[int]:
    try:
        return list(map(round, counts))
    except (ValueError, OverflowError):
        wrong = next(count for count in counts if not math.isfinite(count))
        raise WireError(f"a sum came with {wrong} as a count: no member wrote that") from None


def checksum(notes: Notes) -> float:
    """A number for the names of some notes that even float32 holds exactly; 0 for none."""
    return float(1 + zlib.crc32("\0".join(sorted(notes)).encode()) % (1 << 23)) if notes else 0.0
