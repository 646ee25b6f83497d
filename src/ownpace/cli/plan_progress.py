"""What is shown while a plan is made: a bar for each stage, or where that is no terminal, a line now and then."""

from __future__ import annotations

import time

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from ownpace.planning import PlanProgress

EVERY_S = 5.0
"""Between two lines, where nothing can be drawn over."""


STARTING = "reading data"
BAR = 14
BESIDE = 16 + BAR + 10 + 4 + 4
"""Of a line, what is not free for what is under way: the longest stage, the bar, the runs, and what is between."""


class Stages:
    """The stages of a plan, on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("runs"),
            # No markup: a question may be add:new:2, of which rich would make an emoji.
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_interactive,
        )
        self._bars: dict[str, TaskID] = {}
        self._began_s = time.monotonic()
        self._next_line_s = self._began_s + EVERY_S

    def __enter__(self) -> Stages:
        self._progress.start()
        self._bars[STARTING] = self._progress.add_task(STARTING, total=None, note="")  # large data takes seconds
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def take(self, now: PlanProgress) -> None:
        """Show how far it is."""
        if not self._console.is_interactive:
            if time.monotonic() >= self._next_line_s:
                self._next_line_s = time.monotonic() + EVERY_S
                self._console.print(self._line(now), markup=False, highlight=False, emoji=False, soft_wrap=True)
            return
        if (starting := self._bars.pop(STARTING, None)) is not None:
            self._progress.remove_task(starting)
        if now.stage not in self._bars:
            for stage, bar in self._bars.items():  # what came before is done, however many it took
                done = self._progress.tasks[list(self._bars).index(stage)].completed
                self._progress.update(bar, total=done, note="")
            self._bars[now.stage] = self._progress.add_task(now.stage, total=now.expected, note="")
        self._progress.update(self._bars[now.stage], completed=now.done, total=now.expected)
        self._progress.update(self._bars[now.stage], note=self._note(now))

    def _note(self, now: PlanProgress) -> str:
        limit = "" if now.limit_s is None else f" of {now.limit_s:.0f}"
        note = f"{self._elapsed_s:.0f}{limit} s" + (f": {now.note}" if now.note else "")
        room = self._console.width - BESIDE
        return note if cell_len(note) <= room else set_cell_size(note, max(1, room - 1)) + "…"

    def _line(self, now: PlanProgress) -> str:
        what = f"{now.stage} ({now.note})" if now.note else now.stage
        limit = "" if now.limit_s is None else f" of at most {now.limit_s:.0f}"
        return f"{what}: {now.done} of about {now.expected} runs, {self._elapsed_s:.0f}{limit} s"

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s
