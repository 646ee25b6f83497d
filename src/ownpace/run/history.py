"""How a run went: what each evaluation found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from ownpace.core.contract.events import Evaluation, Event

MOST_ROWS = 10_000
"""More are thinned out, so that the memory of a long run does not grow."""


@dataclass(frozen=True)
class HistoryRow:
    """One evaluation."""

    time: float
    """Seconds of the engine's clock."""
    samples: int
    updates: int
    loss: float | None
    """None: not finite."""
    accuracy: float | None
    """None: the task has none."""


class History(Sequence[HistoryRow]):
    """The evaluations of a run; of very many, those at even distances, and the last.

    >>> history = History(Evaluation(t=float(n), samples=n, updates=n, loss=1.0, accuracy=None) for n in range(25_000))
    >>> history[0].samples, history[1].samples, history[-1].samples
    (0, 4, 24999)
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._rows: list[HistoryRow] = []
        self._every = 1
        self._seen = 0
        self._last: HistoryRow | None = None
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Look at one more event."""
        if not isinstance(event, Evaluation):
            return
        self._last = HistoryRow(event.t, event.samples, event.updates, event.loss, event.accuracy)
        if self._seen % self._every == 0:
            if len(self._rows) == MOST_ROWS:
                del self._rows[1::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self._rows.append(self._last)
        self._seen += 1

    def _all(self) -> list[HistoryRow]:
        is_kept = self._last is None or (self._rows and self._rows[-1] is self._last)
        return self._rows if is_kept else [*self._rows, *([] if self._last is None else [self._last])]

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> HistoryRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[HistoryRow]: ...
    def __getitem__(self, index: int | slice) -> HistoryRow | list[HistoryRow]:
        return self._all()[index]

    def __repr__(self) -> str:
        return f"<{len(self)} evaluations>"
