"""The events of one run on their way to its files, which have a bound and survive a full disk."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ownpace.core.contract.event_file import EVENTS, segment_header, segment_path, segments
from ownpace.core.contract.events import Compute, Detail, End, Event, Omitted, Update, from_line, to_line
from ownpace.core.line_file import LineFile

_LAST_BYTES, _TAIL_BYTES = 1 << 13, 1 << 15
"""What is left free for evaluations and the last record on a disk that is full, and how much is looked at for that."""
_logger = logging.getLogger(__name__)


@dataclass
class _Sums:
    """What the detail in one file of the latest part adds up to."""

    t: float | None = None
    until: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    computed_samples: int = 0
    updated_samples: int = 0

    def add(self, event: Detail) -> None:
        """Count one more record."""
        until = event.t if isinstance(event, Update) else event.until
        self.t = event.t if self.t is None else min(self.t, event.t)
        self.until = max(self.until, until)
        self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
        if isinstance(event, Update):
            self.updated_samples += event.samples
            return
        self.seconds[event.kind] = self.seconds.get(event.kind, 0.0) + until - event.t
        if isinstance(event, Compute):
            self.computed_samples += event.samples

    def record(self, why: str = "limit") -> Omitted:
        """The record that stands for all of them."""
        return Omitted(
            self.t or 0.0,
            self.until,
            dict(self.counts),
            dict(self.seconds),
            self.computed_samples,
            self.updated_samples,
            why,
        )


@dataclass
class Position:
    """How far the files of a run are, so that a resumed run can go on from there."""

    num_bytes: int = 0
    """Of events.jsonl."""
    num_lines: int = 0
    number: int = 0
    """Of the latest part's newest file; 0: all is in events.jsonl."""
    segment_bytes: int = 0
    sums: dict[str, object] = field(default_factory=dict)
    """Of that file."""


class EventLog:
    """Writes events.jsonl and, from half of the limit on, the latest part beside it (`core.contract.event_file`).

    No file is ever rewritten: of the latest part, the file before the last is deleted when a new one begins. A disk
    that is full ends the records, not the run.
    """

    def __init__(self, folder: Path, limit_bytes: int = 0, *, position: Position | None = None) -> None:
        """Begin a new file, or go on from `position` of those there are. A limit of 0 is none."""
        self.error: OSError | None = None
        """Why records have ended."""
        self._folder = folder
        self._first_bytes, self._segment_bytes = limit_bytes // 2, limit_bytes // 4
        at = position or Position()
        self._first = LineFile(folder / EVENTS, keep_bytes=None if position is None else at.num_bytes)
        self._num_lines, self._number = at.num_lines, at.number
        self._segment: LineFile | None = None
        self._sums = _Sums(**at.sums)  # type: ignore[arg-type]  # its own fields, as `position` wrote them
        self._stopped_at = 0.0
        if position is not None:
            self._go_on(at)

    def _go_on(self, at: Position) -> None:
        """Remove what was recorded after the position."""
        for number, path in segments(self._folder).items():
            if number > at.number:
                path.unlink()
        path = segment_path(self._folder, at.number)
        # Gone, if the run was so far ahead of its last checkpoint: its sums are in the first file.
        if path.exists():
            self._segment = LineFile(path, keep_bytes=at.segment_bytes)

    def position(self) -> Position:
        """Where the files are now; everything up to here is written first."""
        self._first.flush()
        if self._segment is not None:
            self._segment.flush()
        size = 0 if self._segment is None else self._segment.size
        return Position(self._first.size, self._num_lines, self._number, size, asdict(self._sums))

    def position_now(self) -> Position:
        """The same; where the disk is full, that of what could be written."""
        with contextlib.suppress(OSError):
            self.position()
        return self.position()  # nothing waits any more

    def write(self, event: Event) -> None:
        """Add one event. If the disk is full, that is said once, and no detail is written any more."""
        if self.error is None:
            try:
                self._write(event)
            except OSError as error:
                self._stop(error)
        elif not isinstance(event, Detail):
            self._write_after_stop(event)

    def _write_after_stop(self, event: Event) -> None:
        """Detail has ended, and left some room for the rest."""
        line = _line(event)
        if isinstance(event, End):
            line = _line(Omitted(self._stopped_at, event.t, {}, {}, 0, 0, _reason(self.error))) + line
        for file in filter(None, (self._segment, self._first)):
            with contextlib.suppress(OSError):
                file.add(line)
                file.flush()

    def _write(self, event: Event) -> None:
        detail = isinstance(event, Detail)
        if not self._number and (not self._first_bytes or self._first.size < self._first_bytes):
            self._add_first(event)
        else:
            line = _line(event)
            if self._segment is None or self._segment.size + len(line) > self._segment_bytes:
                self._next_segment()
            if isinstance(event, End):
                self._add_first(self._sums.record())
            if not detail:
                self._add_first(event)
            # In both: the latest part can be read in order without looking for what lies between in the first file.
            assert self._segment is not None
            self._segment.add(line)
            if isinstance(event, Detail):
                self._sums.add(event)
        if not detail:
            self._first.flush()

    def _next_segment(self) -> None:
        if self._segment is not None:
            # Before the file that its successor will be read after.
            self._add_first(self._sums.record())
            self._segment.close()
            segment_path(self._folder, self._number - 1).unlink(missing_ok=True)
        self._sums = _Sums()
        self._number += 1
        self._segment = LineFile(segment_path(self._folder, self._number))
        self._segment.add(segment_header(self._num_lines))

    def _add_first(self, event: Event) -> None:
        self._num_lines += 1
        self._first.add(_line(event))

    def _stop(self, error: OSError) -> None:
        self.error = error
        with contextlib.suppress(OSError, ValueError):
            self._stopped_at = _cut_tail(self._segment or self._first)
        _logger.warning(
            "events cannot be written any more (%s), from %.3f s of the run on; training goes on without them",
            _reason(error),
            self._stopped_at,
        )

    def make_room(self) -> None:
        """Give up all detail, after the last record: the model needs its room more."""
        self._end_segment()
        with contextlib.suppress(OSError, ValueError):
            self._first.flush()
            self._first.cut(_without_detail(self._folder / EVENTS))
        self.error = self.error or OSError("detail was removed to make room for the model")

    def _end_segment(self) -> None:
        with contextlib.suppress(OSError):
            if self._segment is not None:
                self._segment.close()
            for path in segments(self._folder).values():
                path.unlink()
        self._segment = None

    def close(self) -> None:
        """Write what waits."""
        for file in filter(None, (self._first, self._segment)):
            try:
                file.close()
            except OSError as error:
                self.error = self.error or error


def _reason(error: OSError | None) -> str:
    return "" if error is None else error.strerror or str(error)


def _line(event: Event) -> bytes:
    return (to_line(event) + "\n").encode()


def _cut_tail(file: LineFile) -> float:
    """Take the last detail out again, to leave room for the last record; returns from when on it is missing."""
    freed, t = 0, 0.0
    with file.path.open("rb") as source:
        source.seek(max(0, file.size - _TAIL_BYTES))
        _, *lines = source.read().splitlines(keepends=True)
    kept: list[bytes] = []
    while lines and freed < _LAST_BYTES:
        event = from_line(lines[-1].decode())
        if isinstance(event, Detail):
            freed += len(lines.pop())
            t = event.t
        else:
            kept.insert(0, lines.pop())
    file.cut(file.size - freed - sum(map(len, kept)))
    for line in kept:
        file.add(line)
    file.flush()
    return t


def _without_detail(path: Path) -> int:
    """Move all other records to the front of the file, which takes no room; returns how long they are."""
    sums = _Sums()
    size = 0
    with path.open("rb") as source, path.open("rb+") as target:
        for line in source:
            event = from_line(line.decode())
            if isinstance(event, Detail):
                sums.add(event)
                continue
            if isinstance(event, End) and sums.counts:
                size += target.write(_line(sums.record("no room")))
            # The target never overtakes the source: what it holds was read before.
            size += target.write(line)
    return size
