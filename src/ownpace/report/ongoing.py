"""A run that is going on, in a few lines: how far it is, how it learns, and what its workers do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ownpace.core.contract.events import Compute, End, Evaluation, Event, Fault, Generation, Run, Update
from ownpace.report.summary import SummaryBuilder

LATEST = 64
"""Of a worker's computations, and of updates: what is shown is what happens now."""
MOST_NEWS = 4


@dataclass
class WorkerPace:
    """What a worker did of late."""

    spans: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=LATEST))
    """From when, until when, samples."""

    @property
    def busy(self) -> float:
        """The share of its time."""
        whole = self.spans[-1][1] - self.spans[0][0] if self.spans else 0.0
        return min(1.0, self._computed / whole) if whole > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """While it computes."""
        return sum(samples for *_, samples in self.spans) / self._computed if self._computed else 0.0

    @property
    def _computed(self) -> float:
        return sum(until - t for t, until, _ in self.spans)


class OngoingRun:
    """What is known of a run that is going on."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.end: End | None = None
        self.evaluation: Evaluation | None = None
        self.workers: dict[str, WorkerPace] = {}
        self.news: deque[str] = deque(maxlen=MOST_NEWS)
        """What happened to machines."""
        self.sums = SummaryBuilder()
        self.samples = self.updates = 0
        self.seconds = 0.0
        self._staleness: deque[int] = deque(maxlen=LATEST)

    def take(self, event: Event) -> None:
        """Look at one more event."""
        self.seconds = max(self.seconds, getattr(event, "until", getattr(event, "t", 0.0)))
        match event:
            case Compute():
                worker = self.workers.setdefault(event.who, WorkerPace())
                worker.spans.append((event.t, event.until, event.samples))
            case Update():
                self.samples = max(self.samples, event.total_samples)
                self.updates = max(self.updates, event.version)
                self._staleness.append(event.staleness)
            case Evaluation():
                self.evaluation = event
                self.samples, self.updates = max(self.samples, event.samples), max(self.updates, event.updates)
            case Fault():
                self.news.append(f"{event.t:.1f} s: {event.what} {event.who}")
            case Generation():
                self.samples = event.samples  # what was lost happens again
                self.news.append(f"{event.t:.1f} s: goes on after a {event.why}")
            case Run():
                self.run = event
            case End():
                self.end = event
            case _:
                pass
        if isinstance(event, Run | Evaluation | End):
            self.sums.take(event)

    @property
    def rate(self) -> float:
        """Samples per second of the engine's clock, over all."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def staleness(self) -> float | None:
        """Of the latest updates, in the mean."""
        return sum(self._staleness) / len(self._staleness) if self._staleness else None

    def scores(self) -> str:
        """The latest evaluation."""
        if self.evaluation is None:
            return "not evaluated yet"
        accuracy, loss = self.evaluation.accuracy, self.evaluation.loss
        words = [] if accuracy is None else [f"accuracy {accuracy:.1%}"]
        words += ["loss not finite"] if loss is None else [f"loss {loss:.4g}"]
        return "  ".join(words)

    def speed(self) -> str:
        """How far it is, and how fast."""
        staleness = "" if self.staleness is None else f"  staleness {self.staleness:.1f}"
        return f"{self.seconds:,.2f} s  {self.rate:,.0f} samples/s  {self.updates:,} updates{staleness}"
