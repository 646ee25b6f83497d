"""Everything that is kept of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ownpace.core.contract.errors import InputError
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
from ownpace.report.digest.shares import Spent
from ownpace.report.digest.thinned import Thinned
from ownpace.report.digest.timeline import Timeline
from ownpace.report.summary import Summary, SummaryBuilder

MOST_MARKS = 200
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

    def take(self, event: Event) -> None:
        """Look at one more event."""
        # The first three are nearly all of a file, which may have a million records.
        match event:
            case Compute():
                self._computed[event.who] = self._computed.get(event.who, 0) + event.samples
                self._note("compute", event.who, event.t, event.until)
            case Load() | Wait():
                self._note(event.kind, event.who, event.t, event.until)
            case Transfer():
                if isinstance(event.who, str):
                    self._note("transfer", event.who, event.t, event.until)
                else:
                    for who in event.who:
                        self._note("transfer", who, event.t, event.until)
            case Update():
                self._take_totals(event.t, event.total_samples, self.staleness.total + 1)
                self.staleness.add(event.staleness)
                self.update_samples.add(event.samples)
                self.start.timeline.add_update(event.t)
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

    def _note(self, kind: str, who: str, t: float, until: float) -> None:
        start = self._start or self.start
        self.spent.add(kind, who, t, until)
        for row in start.rows.get(who, ()):
            start.timeline.add(row, kind, t, until)

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


def digest(events: Iterable[Event], known_classes: Mapping[str, str] | None = None) -> RunDigest:
    """Everything that a page shows of these events.

    Raises:
        InputError: They do not begin with a first record.
    """
    found = RunDigest(known_classes)
    for event in events:
        found.take(event)
    _ = found.start
    return found
