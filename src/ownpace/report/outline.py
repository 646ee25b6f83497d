"""What a figure shows of a run, taken from its events as they come: memory does not grow with the run."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ownpace.core.contract.events import Compute, End, Evaluation, Event, Load, Run, Transfer, Update, Wait
from ownpace.core.contract.target import Goal, TargetWatch
from ownpace.report.digest.classes import chosen, classes_of

MOST_ROWS = 8
MOST_SPANS = 4000
"""Of each kind and worker: more cannot be told apart in a figure."""
UPDATES_SHOWN = 6


class Spans:
    """From when until when, as many times as there is room for: pairs of Python's numbers would take seven times as
    much, and a run with many workers has a hundred thousand of them.
    """

    def __init__(self) -> None:
        self._ends = array("d")

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self._ends[::2], self._ends[1::2], strict=True)

    def add(self, t: float, until: float) -> None:
        """One more."""
        self._ends.extend((t, until))


class RunOutline:
    """Evaluations of the whole run, and what some workers of each class did at the beginning."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.run: Run | None = None
        self.scores: list[tuple[float, float]] = []
        """Time and test accuracy of each evaluation."""
        self.losses: list[tuple[float, float]] = []
        self.updates: list[float] = []
        """When the first ones were made."""
        self.spans: dict[tuple[str, int], Spans] = {}
        """By kind and row."""
        self.known_until = math.inf
        """Up to when everything is here."""
        self.target = TargetWatch(Goal())
        """The target, and when it was reached."""
        self._end_s: float | None = None
        self._rows: dict[str, int] = {}
        for event in events:
            self.take(event)

    @property
    def rows(self) -> list[str]:
        """The workers that are shown."""
        return list(self._rows)

    @property
    def num_workers(self) -> int:
        """Of the run."""
        return 0 if self.run is None else len(self.run.groups["workers"])

    @property
    def window_s(self) -> float:
        """How much of the beginning is worth showing: a few updates, or all of a run that has none."""
        if self.updates:
            return self.updates[:UPDATES_SHOWN][-1]
        return 1.0 if self._end_s is None else self._end_s

    def take(self, event: Event) -> None:
        """Look at one more event."""
        match event:
            case Compute() | Load() | Wait():
                if event.who in self._rows:
                    self._note(event.kind, self._rows[event.who], event.t, event.until)
            case Transfer():
                who = self._members(event.who) if isinstance(event.who, str) else event.who
                # Servers, communicators and workers beyond the last row have none.
                for member in set(who) & set(self._rows):
                    self._note(event.kind, self._rows[member], event.t, event.until)
            case Update():
                if len(self.updates) < MOST_SPANS:
                    self.updates.append(event.t)
                else:
                    self.known_until = min(self.known_until, event.t)
            case Evaluation():
                if event.accuracy is not None:
                    self.scores.append((event.t, event.accuracy))
                if event.loss is not None:
                    self.losses.append((event.t, event.loss))
                self.target.take(event.t, event.accuracy, event.loss)
            case Run():
                self.run = event
                self.target = TargetWatch(Goal(event.target, event.target_loss))
                self._rows = {name: row for row, name in enumerate(_some_of_each(self._members("workers")))}
            case End():
                self._end_s = event.t
            case _:
                pass

    @property
    def points(self) -> list[tuple[float, float]]:
        """What is drawn over time: the accuracy, or the loss where there is none or where that is the target."""
        by_loss = self.target.target.loss is not None or not self.scores
        return self.losses if by_loss else self.scores

    def _members(self, group: str) -> list[str]:
        return [] if self.run is None else self.run.groups.get(group, [])

    def _note(self, kind: str, row: int, t: float, until: float) -> None:
        spans = self.spans.setdefault((kind, row), Spans())
        if len(spans) < MOST_SPANS:
            spans.add(t, until)
        else:
            self.known_until = min(self.known_until, t)


def _some_of_each(workers: Sequence[str]) -> list[str]:
    """Workers of every class of machines, spread over all of the class: those of one name may differ, too.

    >>> _some_of_each([f"worker-{number}" for number in range(80)])[:4]
    ['worker-0', 'worker-11', 'worker-22', 'worker-33']
    """
    classes = classes_of(workers, {})
    taken = Counter(worker.rpartition("-")[0] or worker for worker in chosen(classes, MOST_ROWS))
    spread: list[str] = []
    for name, num in taken.items():
        members = classes[name]
        spread += [members[at * (len(members) - 1) // max(1, num - 1)] for at in range(num)]
    return spread
