"""What every node did when, as trace events that Perfetto and chrome://tracing open.

One process for each run, one track for each node; what overlaps on a track gets a further lane beside it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ownpace.core.contract.events import (
    Compute,
    Evaluation,
    Event,
    Fault,
    Generation,
    Load,
    Run,
    Transfer,
    Update,
    Wait,
)
from ownpace.core.whole_file import whole_file

MARK = '{"displayTimeUnit":"ms","traceEvents":['
"""What every such file begins with."""
_MICRO = 1e6
_SLACK_S, _LATEST_S = 1e-9, 1e15
Record = dict[str, object]


def write_trace(runs: Mapping[str, Iterable[Event]], path: Path) -> int:
    """Write the runs, by name, into a JSON file, packed if its name ends in .gz; returns the number of its records.

    Raises:
        OSError: It cannot be written.
    """
    count = 0
    with whole_file(path) as part, _opened(part, packed=path.suffix == ".gz") as file:
        file.write(f"{MARK}\n")
        for number, (name, events) in enumerate(runs.items(), 1):
            for record in _Traced(number, name).records(events):
                file.write((",\n" if count else "") + json.dumps(record, separators=(",", ":"), allow_nan=False))
                count += 1
        file.write("\n]}\n")
    return count


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[TextIO]:
    with gzip.open(path, "wt", encoding="utf-8") if packed else path.open("w", encoding="utf-8") as file:
        yield file


class _Traced:
    """One run's records."""

    def __init__(self, number: int, name: str) -> None:
        self._base: Record = {"pid": number}
        self._name = name
        self._lanes: dict[str, list[tuple[int, float]]] = {}
        """Of each track: the number of each lane, and when it is free."""
        self._num_lanes = 0

    def records(self, events: Iterable[Event]) -> Iterator[Record]:
        """All of them, as they come."""
        for event in events:
            t = getattr(event, "t", 0.0)
            if max(abs(t), abs(getattr(event, "until", t))) > _LATEST_S:
                continue  # damaged: no run lasts that long, and JSON has no infinity
            match event:
                case Run():
                    title = f"{self._name}: {event.algorithm} on {event.task}"
                    yield {**self._base, "ph": "M", "name": "process_name", "args": {"name": title}}
                    # All workers first, in their order: tracks are made in the order of what happens on them.
                    for worker in event.groups.get("workers", [])[:1000]:
                        yield from self._track(worker)
                case Compute():
                    yield from self._span(event, event.who, {"samples": event.samples, "version": event.version})
                case Wait():
                    yield from self._span(event, event.who, {"for": event.what})
                case Load():
                    yield from self._span(event, f"{event.who} loads", {"samples": event.samples})
                case Transfer():
                    who = event.who if isinstance(event.who, str) else " → ".join(event.who)
                    yield from self._span(event, f"transfer: {who}", {"what": event.what, "bytes": event.nbytes})
                case Update():
                    yield from self._counter("staleness", event.t, event.staleness)
                    yield from self._counter("samples per update", event.t, event.samples)
                case Evaluation():
                    yield from self._counter("test accuracy", event.t, event.accuracy)
                    yield from self._counter("test loss", event.t, event.loss)
                case Fault() | Generation():
                    what = f"{event.what} {event.who}" if isinstance(event, Fault) else f"goes on after a {event.why}"
                    yield {**self._base, "ph": "i", "s": "p", "tid": 0, "name": what, "ts": event.t * _MICRO}
                case _:
                    pass

    def _counter(self, name: str, t: float, value: float | None) -> Iterator[Record]:
        if value is not None:
            yield {**self._base, "ph": "C", "name": name, "ts": t * _MICRO, "args": {"value": value}}

    def _span(self, event: Compute | Wait | Load | Transfer, track: str, about: Record) -> Iterator[Record]:
        lanes = self._lanes.get(track)
        if lanes is None:
            yield from self._track(track)
            lanes = self._lanes[track]
        free = next((at for at, (_, until) in enumerate(lanes) if until <= event.t + _SLACK_S), None)
        if free is None:
            yield from self._track(track)
            free = len(lanes) - 1
        lanes[free] = (lanes[free][0], event.until)
        span = {"ts": event.t * _MICRO, "dur": max(0.0, event.until - event.t) * _MICRO}
        yield {**self._base, "ph": "X", "tid": lanes[free][0], "name": event.kind, **span, "args": about}

    def _track(self, name: str) -> Iterator[Record]:
        """One more lane of a track."""
        self._num_lanes += 1
        lanes = self._lanes.setdefault(name, [])
        lanes.append((self._num_lanes, 0.0))
        title = name if len(lanes) == 1 else f"{name} ({len(lanes)})"
        base = {**self._base, "ph": "M", "tid": self._num_lanes}
        yield {**base, "name": "thread_name", "args": {"name": title}}
        yield {**base, "name": "thread_sort_index", "args": {"sort_index": self._num_lanes}}
