"""What each of a few workers did when: all of the beginning and of the end, and shares of the time in between."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

MOST_SPANS = 5000
"""Of the beginning, and of the end."""
MOST_UPDATES = 2000
"""Likewise."""
NUM_BUCKETS = 1024
_LATEST_S = 1e15
"""Later than any run: a damaged record must not stretch the timeline beyond what floats can count."""
Span = tuple[int, str, float, float]
"""Row, kind, from when, until when."""
Times = Sequence[tuple[float, float]]
"""From when until when, several times."""


class Overview:
    """The share of each stretch of time that a row spent on each thing; stretches grow with the run."""

    def __init__(self, num_buckets: int = NUM_BUCKETS) -> None:
        self._num = num_buckets
        self.width = 1e-6
        """Of a bucket, in seconds."""
        self.seconds: dict[tuple[int, str], list[float]] = {}

    def add(self, row: int, kind: str, times: Times) -> None:
        """Some more spans of time."""
        if (latest := max(until for _, until in times)) >= self.width * self._num:
            self._widen(latest)
        width = self.width
        buckets = self.seconds.setdefault((row, kind), [])
        buckets += [0.0] * (self._num - len(buckets))
        for t, until in times:
            first, last = int(t / width), int(until / width)
            if first == last:
                buckets[first] += until - t
                continue
            buckets[first] += (first + 1) * width - t
            for at in range(first + 1, last):
                buckets[at] += width
            buckets[last] += until - last * width

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
    """The first and the last of what is added, about as many as are asked for of each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest: deque[list[Span]] = deque()
        self._num_latest = 0
        self.first: list[Span] = []
        self.first_until = math.inf
        """Before this, all are in `first`."""
        self.last_from = 0.0
        """From this on, all are in `last`."""

    @property
    def last(self) -> Iterable[Span]:
        """The last, as far as they are not the first."""
        return chain.from_iterable(self._latest)

    def add(self, spans: list[Span]) -> None:
        """Some more, later than those before, about."""
        if len(self.first) < self._most:
            self.first += spans
            return
        self.first_until = min(self.first_until, min(span[2] for span in spans))
        self._latest.append(spans)
        self._num_latest += len(spans)
        while self._num_latest - len(self._latest[0]) >= self._most:
            gone = self._latest.popleft()
            self._num_latest -= len(gone)
            self.last_from = max(self.last_from, max(span[3] for span in gone))


class Timeline:
    """What the rows of a figure did."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = list(rows)
        self.overview = Overview()
        self._spans = _Ends(MOST_SPANS)
        self._updates = _Ends(MOST_UPDATES)

    def add(self, found: Mapping[tuple[int, str], Times]) -> None:
        """What rows did next, by row and kind; what took no time is not shown."""
        spans: list[Span] = []
        for (row, kind), times in found.items():
            shown = [(t, until) for t, until in times if 0 <= t < until < _LATEST_S]
            if shown:
                self.overview.add(row, kind, shown)
                spans += [(row, kind, t, until) for t, until in shown]
        if spans:
            self._spans.add(spans)

    def add_updates(self, times: Iterable[float]) -> None:
        """When the next updates were made."""
        if updates := [(0, "update", t, t) for t in times]:
            self._updates.add(updates)

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
