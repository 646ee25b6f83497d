"""What each of a few workers did when: all of the beginning and of the end, and shares of the time in between."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MOST_SPANS = 5000
"""Of the beginning, and of the end."""
MOST_UPDATES = 2000
"""Likewise."""
NUM_BUCKETS = 1024
_LATEST_S = 1e15
"""Later than any run: a damaged record must not stretch the timeline beyond what floats can count."""
Span = tuple[int, str, float, float]
"""Row, kind, from when, until when."""


class Overview:
    """The share of each stretch of time that a row spent on each thing; stretches grow with the run."""

    def __init__(self, num_buckets: int = NUM_BUCKETS) -> None:
        self._num = num_buckets
        self.width = 1e-6
        """Of a bucket, in seconds."""
        self.seconds: dict[tuple[int, str], list[float]] = {}

    def add(self, row: int, kind: str, t: float, until: float) -> None:
        """One more span of time."""
        if until >= self.width * self._num:
            self._widen(until)
        buckets = self.seconds.get((row, kind))
        if buckets is None:
            buckets = self.seconds[row, kind] = [0.0] * self._num
        first, last = int(t / self.width), int(until / self.width)
        if first == last:
            buckets[first] += until - t
            return
        buckets[first] += (first + 1) * self.width - t
        for at in range(first + 1, last):
            buckets[at] += self.width
        buckets[last] += until - last * self.width

    def _widen(self, until: float) -> None:
        # At once by as much as it takes: the first span may be far from zero.
        factor = 2 ** max(1, math.ceil(math.log2((until + self.width) / (self.width * self._num))))
        self.width *= factor
        for buckets in self.seconds.values():
            sums = [math.fsum(buckets[at : at + factor]) for at in range(0, self._num, factor)]
            buckets[:] = sums + [0.0] * (self._num - len(sums))


@dataclass
class Stretch:
    """A part of a run of which everything is known."""

    start: float
    end: float
    spans: list[Span] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)


class _Ends:
    """The first and the last of what is added."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.first: list[Span] = []
        self.last: deque[Span] = deque()
        self.first_until = math.inf
        """Before this, all are in `first`."""
        self.last_from = 0.0
        """From this on, all are in `last`."""

    def add(self, span: Span) -> None:
        if len(self.first) < self._most:
            self.first.append(span)
            return
        if span[2] < self.first_until:
            self.first_until = span[2]
        if len(self.last) >= self._most and (gone := self.last.popleft()[3]) > self.last_from:
            self.last_from = gone
        self.last.append(span)


class Timeline:
    """What the rows of a figure did."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = list(rows)
        self.overview = Overview()
        self._spans = _Ends(MOST_SPANS)
        self._updates = _Ends(MOST_UPDATES)

    def add(self, row: int, kind: str, t: float, until: float) -> None:
        """One row did one thing; what took no time is not shown."""
        if 0 <= t < until < _LATEST_S:
            self.overview.add(row, kind, t, until)
            self._spans.add((row, kind, t, until))

    def add_update(self, t: float) -> None:
        """An update was made."""
        self._updates.add((0, "update", t, t))

    def stretches(self, end: float) -> list[Stretch]:
        """Those parts of the run of which everything is known: all of it, or the beginning and the end."""
        first_until = min(self._spans.first_until, self._updates.first_until, end)
        last_from = max(self._spans.last_from, self._updates.last_from)
        if not self._spans.last_from and not self._updates.last_from:
            first_until = end  # nothing was dropped
        if first_until >= end or last_from <= first_until:
            return [self._stretch(0.0, end)]
        return [self._stretch(0.0, first_until), self._stretch(last_from, end)]

    def _stretch(self, start: float, end: float) -> Stretch:
        def within(kept: _Ends) -> Iterable[Span]:
            return (span for span in (*kept.first, *kept.last) if span[3] >= start and span[2] <= end)

        return Stretch(start, end, list(within(self._spans)), [span[2] for span in within(self._updates)])
