"""How far a run is, for whoever calls `ownpace.train`: a line that is written anew, or now and then one more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from ownpace.core.contract.events import Evaluation, Event
from ownpace.engines import Job
from ownpace.engines.job import ProgressReport

COLUMNS = 79
"""What any terminal has: a longer line would break, and could not be written over."""
LIVE_EVERY_S = 0.2
ASKED_EVERY_S = 2.0
"""Between lines that stay, where they were asked for."""
UNASKED_EVERY_S = 10.0
"""Where they were not: a run that is shorter says nothing."""
_CELLS = 16


class ProgressLine:
    """One line for one run after the other."""

    def __init__(
        self, stream: TextIO, *, live: bool, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._live = live
        self._clock = clock
        self._every_s = every_s
        self._shown_at = clock()
        self._is_shown = False
        self._name = ""
        self._total: float | None = None
        self._by_time = False
        self._accuracy = ""

    def on_start(self, job: Job) -> None:
        """A run begins; it ends after this many samples, or at this time."""
        self._name = job.labels.get("algorithm") or type(job.algorithm).__name__
        self._by_time = job.samples is None
        self._total = job.seconds if self._by_time else job.samples
        self._accuracy = ""
        self._shown_at = self._clock()
        if self._live:
            self._write(f"{self._name}: starting")

    def on_event(self, event: Event) -> None:
        """Remember the latest evaluation."""
        if isinstance(event, Evaluation) and event.accuracy is not None:
            self._accuracy = f", {event.accuracy:.1%} right"

    def on_progress(self, report: ProgressReport) -> None:
        """The engine reports how far it is."""
        now = self._clock()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        done = report.seconds if self._by_time else report.samples
        share = min(1.0, done / self._total) if self._total else 0.0
        bar = f" {'█' * round(_CELLS * share):░<{_CELLS}}" if self._live else ""
        pace = f", {report.samples / report.seconds:,.0f} samples/s" if report.seconds > 0 else ""
        loss = "" if report.loss is None else f", loss {report.loss:.3g}"
        self._write(f"{self._name}:{bar} {share:.0%}, {report.seconds:.1f} s{pace}{loss}{self._accuracy}")

    def close(self) -> None:
        """The last run has ended: leave nothing half written."""
        if self._is_shown:
            self._put("\r" + " " * COLUMNS + "\r")
            self._is_shown = False

    def _write(self, line: str) -> None:
        line = line[:COLUMNS]
        # Over what was there, which may have been longer.
        self._put(f"\r{line:<{COLUMNS}}" if self._live else f"{line}\n")
        self._is_shown = self._live

    def _put(self, text: str) -> None:
        with suppress(BrokenPipeError):  # nobody reads any more, which ends no run
            self._stream.write(text)
            self._stream.flush()


def progress_line(wanted: bool | None) -> ProgressLine | None:
    """What shows progress, if anything does; None: a line where somebody looks, else lines if the run is long."""
    if wanted is False:
        return None
    stream = sys.stderr
    # A notebook's output is no terminal, but writes a line anew all the same.
    if stream.isatty() or "ipykernel" in sys.modules:
        return ProgressLine(stream, live=True, every_s=LIVE_EVERY_S)
    return ProgressLine(stream, live=False, every_s=ASKED_EVERY_S if wanted else UNASKED_EVERY_S)
