"""Who hears of the runs that one call makes: its caller, and whoever looks at the screen."""

from __future__ import annotations

from pathlib import Path

from ownpace.core.contract.events import Event
from ownpace.engines import is_main_process
from ownpace.engines.job import OnProgress, ProgressReport
from ownpace.run.config import Config
from ownpace.run.execution import execute
from ownpace.run.hooks import Listeners, OnEvent
from ownpace.run.progress import ProgressLine, progress_line
from ownpace.run.result import Result
from ownpace.run.resume import Resumption


class Watching:
    """Who hears of the runs of one call."""

    def __init__(self, progress: bool | None, on_progress: OnProgress | None, on_event: OnEvent | None) -> None:
        # Of torchrun's ranks, one speaks.
        self._line: ProgressLine | None = progress_line(progress) if is_main_process() else None
        self._on_progress = on_progress
        # One that fails is said and left out: it must not cost the training.
        self._on_event = Listeners([] if on_event is None else [on_event])

    def execute(
        self, config: Config, out: Path | None, *, overwrite: bool = False, resumption: Resumption | None = None
    ) -> Result:
        """Run one of them."""
        return execute(
            config,
            out,
            overwrite=overwrite,
            resumption=resumption,
            on_start=None if self._line is None else self._line.on_start,
            on_event=self._event,
            on_progress=self._progress,
        )

    def _progress(self, report: ProgressReport) -> None:
        if self._line is not None:
            self._line.on_progress(report)
        if self._on_progress is not None:
            self._on_progress(report)

    def _event(self, event: Event) -> None:
        if self._line is not None:
            self._line.on_event(event)
        self._on_event(event)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *details: object) -> None:
        if self._line is not None:
            self._line.close()
