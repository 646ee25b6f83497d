"""What people see while a run goes on: how far it is and, on real processes, how each worker does."""

from __future__ import annotations

import math

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ownpace.core.contract.events import Evaluation, Event
from ownpace.engines import Job
from ownpace.engines.job import ProgressReport

MOST_WORKERS = 16
"""Lines of single workers, at the most."""


class Live:
    """One bar per run, on standard error; nothing where that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def add(self, name: str) -> Bar:
        """A bar for a run that is to come."""
        return Bar(self._progress, self._progress.add_task(name, total=None, note="", start=False))


class Bar:
    """The bar of one run."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._total: float | None = None
        self._by_time = False
        self._score = self._accuracy = ""
        self._workers: dict[str, TaskID] = {}

    def on_start(self, job: Job) -> None:
        """The run begins: it ends after so many samples, or at a time."""
        self._by_time = job.samples is None
        self._total = job.seconds if job.samples is None else job.samples
        self._progress.update(self._task, total=self._total)
        self._progress.start_task(self._task)

    def on_progress(self, progress: ProgressReport) -> None:
        """The engine's word on how far it is."""
        samples, now = progress.samples, progress.seconds
        rate = f"{samples / now:,.0f} samples/s" if now > 0 else ""
        limit = progress.limit_samples_per_s
        if limit and now > 0:
            rate += f" ({samples / now / limit:.0%} of limit)"
        score = self._score if progress.loss is None else f"loss {progress.loss:.3f}{self._accuracy}"
        note = f"{now:8.2f} s  {rate:<16} {score}"
        self._progress.update(self._task, completed=now if self._by_time else samples, note=note)
        self._show_workers(progress)

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
            self._accuracy = "" if event.accuracy is None else f"  accuracy {event.accuracy:.1%}"
            self._score = f"loss {math.nan if event.loss is None else event.loss:.3f}{self._accuracy}"

    def close(self, reason: str) -> None:
        """The run has ended."""
        if reason == "finished":
            self._progress.update(self._task, completed=self._total)
        for task in self._workers.values():
            self._progress.remove_task(task)
