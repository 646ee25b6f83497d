"""What is shown during a run: how far it is and, on real processes, how busy each worker is.

On a terminal bars that fit it; anywhere else, a plain line every few seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from ownpace.core.contract.events import Evaluation, Event
from ownpace.engines import Job
from ownpace.engines.job import ProgressReport

MOST_WORKERS = 16
"""At most this many workers get a line of their own."""
WIDE = 110
"""From this many columns on, everything is written out."""


NARROW = 76
"""Below this many columns, there is no room for bars."""
PLAIN_EVERY_S = 5.0


class Live:
    """One bar per run, on standard error; plain lines where that is not a terminal."""

    def __init__(self, console: Console, *, plain: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        """`plain`: whether there are plain lines; a program that reads JSON wants errors alone."""
        self._plain = plain
        self._console = console
        self._clock = clock
        self._wide = console.width >= WIDE
        columns: list[str | ProgressColumn] = [
            # Names are never cut: what is too long goes on in the next line.
            TextColumn("{task.description:<12}", table_column=Column(overflow="fold")),
            BarColumn(bar_width=16 if self._wide else 6),
            TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", table_column=Column(overflow="fold")),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
        ]
        if console.width < NARROW:
            columns = [columns[0], columns[2], columns[3]]
        self._progress = Progress(*columns, console=console, disable=not console.is_interactive)

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def add(self, name: str) -> Bar:
        """A bar for a run that has not started yet."""
        # Not started: in a comparison, its clock would count the runs before it.
        task = self._progress.add_task(name, total=None, note="", start=False, visible=False)
        if not self._console.is_interactive and self._plain:
            return Bar(self._progress, task, wide=True, say=self._say(name))
        return Bar(self._progress, task, wide=self._wide)

    def _say(self, name: str) -> Callable[[str, bool], None]:
        """Writes a plain line for a run, unless the last one is too recent; without a text, only the time is noted."""
        said_s = 0.0

        def say(text: str, at_once: bool) -> None:
            nonlocal said_s
            if not at_once and self._clock() < said_s + PLAIN_EVERY_S:
                return
            said_s = self._clock()
            if text:
                self._console.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)

        return say


class Bar:
    """The bar of one run."""

    def __init__(
        self, progress: Progress, task: TaskID, *, wide: bool, say: Callable[[str, bool], None] | None = None
    ) -> None:
        """`say` writes a plain line, where there are no bars."""
        self._say = say
        self._progress = progress
        self._task = task
        self._wide = wide
        self._total: float | None = None
        self._by_time = False
        self._score = self._accuracy = self._last_speed = ""
        self._workers: dict[str, TaskID] = {}

    def on_start(self, job: Job, engine: str = "virtual") -> None:
        """The run begins; it ends after this many samples, or at this time."""
        self._by_time = job.samples is None
        self._total = job.seconds if job.samples is None else job.samples
        num = len(job.fleet.workers)
        # Processes take seconds to start; virtual ones do not.
        starting = f"starting {num} workers …"
        self._progress.update(self._task, total=self._total, note=starting, visible=True)
        self._progress.start_task(self._task)
        if self._say is not None:
            self._say(starting if engine == "process" else "", True)

    def on_progress(self, progress: ProgressReport) -> None:
        """The engine reports how far it is."""
        score = self._score if progress.loss is None else f"loss {progress.loss:.3f}{self._accuracy}"
        done = progress.seconds if self._by_time else progress.samples
        self._last_speed = self._speed(progress)
        note = f"{self._last_speed} {score}"
        self._progress.update(self._task, completed=done, note=note)
        if self._say is None:
            self._show_workers(progress)
        else:
            self._say(f"{min(1.0, done / self._total):.0%} {' '.join(note.split())}" if self._total else note, False)

    def _speed(self, progress: ProgressReport) -> str:
        """The engine's time, samples per second and, where the limit is known, their share of it."""
        now, limit = progress.seconds, progress.limit_samples_per_s
        if now <= 0:
            return ""
        rate = progress.samples / now
        share = "" if not limit else f" ({rate / limit:.0%}{' of limit' if self._wide else ''})"
        return f"{now:8.2f} s  {rate:,.0f} samples/s{share}" if self._wide else f"{now:.1f} s {rate:,.0f}/s{share}"

    def _show_workers(self, progress: ProgressReport) -> None:
        """One line for each worker: its pace, and how much of its time it computes."""
        for name, pace in list(progress.paces.items())[:MOST_WORKERS]:
            if name not in self._workers:
                self._workers[name] = self._progress.add_task(f"  {name}", total=1.0, note="")
            busy = progress.busy[name]
            note = f"busy, at {pace:,.0f} samples/s"
            self._progress.update(self._workers[name], completed=busy, note=note)

    def on_event(self, event: Event) -> None:
        """Remember the latest evaluation."""
        if isinstance(event, Evaluation):
            self._accuracy = (
                "" if event.accuracy is None else f"{'  accuracy' if self._wide else ''} {event.accuracy:.1%}"
            )
            self._score = f"loss {math.nan if event.loss is None else event.loss:.3f}{self._accuracy}"

    def close(self, reason: str) -> None:
        """The run has ended."""
        if reason == "finished":
            self._progress.update(self._task, completed=self._total)
        if self._score:  # the last one, which the table shows too
            speed = self._last_speed
            self._progress.update(self._task, note=f"{speed} {self._score}")
        self._progress.stop_task(self._task)
        for task in self._workers.values():
            # The next run of a comparison shows workers of its own.
            self._progress.remove_task(task)
