"""Everything that is kept of one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import Columns
from ownpace.core.contract.events import (
    Compute,
    End,
    Evaluation,
    Event,
    Fault,
    Generation,
    Load,
    Omitted,
    Run,
    Sums,
    Tally,
    Transfer,
    Update,
    Wait,
)
from ownpace.report.digest.classes import chosen, classes_of
from ownpace.report.digest.histogram import Histogram
from ownpace.report.digest.shares import KINDS, Spent
from ownpace.report.digest.thinned import Thinned
from ownpace.report.digest.timeline import Timeline
from ownpace.report.summary import Summary, SummaryBuilder

MOST_MARKS = 200
_AT_ONCE = 1024
"""Spans of time that are digested together."""
_Waiting = defaultdict[str, list[tuple[float, float]]]
CUT_OFF = "cut-off"
"""The code of a run that has no last record."""


class RunDigest:
    """What a page shows of a run."""

    def __init__(self, known_classes: Mapping[str, str] | None = None) -> None:
        """Classes of machines by worker, where they are known."""
        self.accuracy, self.loss = Thinned(), Thinned()
        self.staleness, self.update_samples = Histogram(), Histogram()
        self.spent = Spent()
        self.marks: list[Fault | Generation] = []
        """What happened to machines, the first of it."""
        self.omitted: list[Omitted] = []
        """Stretches of which there is no detail."""
        self._known = known_classes or {}
        self._start: _Start | None = None
        self._builder = SummaryBuilder()
        self._end: End | None = None
        # What a run without a last record comes to, as far as the rest of this does not say it.
        self._last_t = 0.0
        self._samples = self._updates = 0
        self._computed: dict[str, int] = {}
        self._waiting: dict[str, defaultdict[str, list[tuple[float, float]]]] = {
            kind: defaultdict(list) for kind in KINDS
        }
        """From when until when, by kind and node: many at once are digested in half the time."""
        self._num_waiting = 0
        self._updates_at: list[float] = []

    def take(self, event: Event | Columns) -> None:
        """Look at one more event, or at several of one kind."""
        match event:
            case Columns():
                self._take_detail(event.kind.kind, event.values)
            case Compute() | Load() | Wait() | Transfer() | Update():
                self._take_detail(event.kind, tuple((getattr(event, each.name),) for each in fields(event)))
            case Evaluation():
                self._take_evaluation(event)
            case Fault() | Generation():
                self._last_t = max(self._last_t, event.t)
                if len(self.marks) < MOST_MARKS:
                    self.marks.append(event)
            case Omitted():
                if len(self.omitted) < MOST_MARKS:
                    self.omitted.append(event)
            case Run():
                self._builder.take(event)
                self._start = self._start or _Start(event, self._known)
            case End():
                self._builder.take(event)
                self._end = event

    def _take_detail(self, kind: str, values: tuple[tuple[Any, ...], ...]) -> None:
        """Look at records of one kind, field by field: nearly all of a file, which may have a million of them."""
        if kind == "update":
            self._take_updates(*values)
            return
        t, until, *_ = values
        who = values[3 if kind == "transfer" else 2]
        if kind == "compute":
            for name, samples in zip(who, values[3], strict=True):
                self._computed[name] = self._computed.get(name, 0) + samples
        waiting = self._waiting[kind]
        for names, times in zip(who, zip(t, until, strict=True), strict=True):
            for name in (names,) if isinstance(names, str) else names:
                waiting[name].append(times)
        self._num_waiting += len(t)
        if self._num_waiting >= _AT_ONCE:
            self.digest_waiting()

    def _take_updates(
        self,
        t: Sequence[float],
        who: Sequence[str],
        version: Sequence[int],
        samples: Sequence[int],
        total: Sequence[int],
        staleness: Sequence[int],
    ) -> None:
        for stale, size in zip(staleness, samples, strict=True):
            self.staleness.add(stale)
            self.update_samples.add(size)
        self._take_totals(max(t), max(total), self.staleness.total)
        self._updates_at += t

    def digest_waiting(self) -> None:
        """Digest what waits for others of its kind; at the end of the events, that is to be called once more."""
        shown: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for kind, waiting in self._waiting.items():
            for who, times in waiting.items():
                self.spent.add(kind, who, times)
                for row in self.start.rows.get(who, ()):
                    shown.setdefault((row, kind), []).extend(times)
            waiting.clear()
        self.start.timeline.add(shown)
        self.start.timeline.add_updates(self._updates_at)
        self._updates_at.clear()
        self._num_waiting = 0

    def _take_evaluation(self, event: Evaluation) -> None:
        self._builder.take(event)
        self._take_totals(event.t, event.samples, event.updates)
        if event.accuracy is not None:
            self.accuracy.add((event.t, event.samples, event.accuracy))
        if event.loss is not None:
            self.loss.add((event.t, event.samples, event.loss))

    def _take_totals(self, t: float, samples: int, updates: int) -> None:
        self._last_t = max(self._last_t, t)
        self._samples, self._updates = max(self._samples, samples), max(self._updates, updates)

    @property
    def start(self) -> _Start:
        """What the first record says.

        Raises:
            InputError: There was none.
        """
        if self._start is None:
            raise InputError("the events lack their first record; give the folder of a run")
        return self._start

    @property
    def run(self) -> Run:
        """The first record."""
        return self.start.run

    @property
    def seconds(self) -> float:
        """How long the run is, as far as is known."""
        return max(self._last_t, self.spent.until, 0.0 if self._end is None else self._end.t)

    @property
    def recorded_s(self) -> float:
        """The time of which there is detail, up to where the budget was spent."""
        whole = self.summary().seconds
        missing = sum(min(each.until, whole) - each.t for each in self.omitted if each.t < whole)
        return max(0.0, whole - missing)

    def summary(self) -> Summary:
        """The run in numbers; of one without a last record, as far as its records go."""
        _ = self.start
        if self._end is None:
            self._end = self._end_so_far()
            self._builder.take(self._end)
        return self._builder.summary()

    def _end_so_far(self) -> End:
        """The last record, if the run had ended with the latest one that there is."""
        workers = {}
        for name in self.run.groups.get("workers", []):
            spent = self.spent.of(name, ())
            workers[name] = Tally(self._computed.get(name, 0), spent.get("compute", 0.0), spent.get("load", 0.0))
        paces = [tally.samples / tally.compute_s for tally in workers.values() if tally.compute_s > 0]
        stale, sizes = self.staleness, self.update_samples
        end = self.seconds
        sums = Sums(end, self._samples, self._updates, stale.mean, stale.most, sum(paces), workers)
        if sizes.total:
            sums = replace(sums, largest_update=sizes.most)
        return End(end, "no last record: still running, or cut off", sums, CUT_OFF)

    def spent_by_class(self) -> dict[str, dict[str, dict[str, float]]]:
        """Of every class the seconds by worker and kind."""
        groups: dict[str, list[str]] = {}
        for group, members in self.run.groups.items():
            for member in members:
                groups.setdefault(member, []).append(group)
        return {
            name: {worker: self.spent.of(worker, groups.get(worker, ())) for worker in workers}
            for name, workers in self.start.classes.items()
        }


class _Start:
    """What is known from the first record on: who takes part, and who of them is shown."""

    def __init__(self, run: Run, known_classes: Mapping[str, str]) -> None:
        self.run = run
        self.classes = classes_of(run.groups.get("workers", []), known_classes)
        self.timeline = Timeline(chosen(self.classes))
        rows = {worker: row for row, worker in enumerate(self.timeline.rows)}
        # Of every node and group: a transfer among a thousand workers must not be looked up a thousand times.
        self.rows = {worker: [row] for worker, row in rows.items()}
        for group, members in run.groups.items():
            self.rows[group] = [rows[member] for member in members if member in rows]


def digest(events: Iterable[Event | Columns], known_classes: Mapping[str, str] | None = None) -> RunDigest:
    """Everything that a page shows of these events.

    Raises:
        InputError: They do not begin with a first record.
    """
    found = RunDigest(known_classes)
    for event in events:
        found.take(event)
    found.digest_waiting()
    return found
