"""The files of a run that goes on."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ownpace.core.contract.errors import InputError, NotWritten
from ownpace.core.contract.event_file import EVENTS, segments
from ownpace.core.contract.events import End, Event, from_line
from ownpace.run.again import write_starter
from ownpace.run.checkpoints import Checkpoints
from ownpace.run.config import CONFIG, Config
from ownpace.run.event_log import EventLog, Position
from ownpace.run.folder import save_result
from ownpace.run.folder_lock import FolderLock
from ownpace.run.place import CHECKPOINTS, SUMMARY, check_no_folders, check_run, remove_unfinished
from ownpace.run.resume import Resumption, saved_fields
from ownpace.run.saved import saved_content
from ownpace.run.waiting_folder import settle_abandoned

_logger = logging.getLogger(__name__)


class ResumedFolder:
    """The files of a run that goes on, in its own folder or in a copy. Nothing is touched until it has really begun.

    What was recorded after its checkpoint is cut off then: it happens again.
    """

    def __init__(self, resumption: Resumption, out: Path, *, overwrite: bool, events_limit_mb: int) -> None:
        self._copied = not _same(out, resumption.run)
        self._from = _copy(resumption, out) if self._copied else resumption
        self.path = self._from.run
        self.checkpoint: Path | None = self._from.checkpoint
        """What the run goes on from."""
        self._limit_bytes = events_limit_mb * 1_000_000
        self._overwrite = overwrite
        self._config: Config | None = None
        self._events: EventLog | None = None
        self._end: End | None = None
        self._lock = FolderLock(self.path)
        try:
            self._check()
        except InputError:
            self._lock.release()
            raise

    def _check(self) -> None:
        """Raise if the run must not go on in this folder."""
        if not self._copied and not self._from.is_newest() and not self._overwrite:
            raise InputError(
                f"{self._from.checkpoint} is not the newest checkpoint of the run, and newer ones would be lost; "
                "go on in another folder with --out, or add --overwrite"
            )
        if not os.access(self.path, os.W_OK):
            raise InputError(f"the folder {self.path} cannot be written; go on in another with --out")
        check_no_folders(self.path)

    def __enter__(self) -> ResumedFolder:
        return self

    def __exit__(self, *details: object) -> None:
        if self._events is not None:
            self._events.close()
        self._lock.release()

    def write_config(self, config: Config) -> None:
        """Save what is run, once it has begun."""
        self._config = config

    def write_event(self, event: Event) -> None:
        """Append one event."""
        # A run that ends before anything has happened has not begun.
        if self._events is None and isinstance(event, End):
            self._end = event
            return
        self.begin().write(event)

    def begin(self) -> EventLog:
        """The run has begun: now its files go on from the checkpoint."""
        if self._events is None:
            # Gone first: a folder that has one is complete.
            (self.path / SUMMARY).unlink(missing_ok=True)
            checkpoints = Checkpoints(self.path)
            if self._overwrite:
                checkpoints.remove(newer_than=self._from.checkpoint)
            checkpoints.prepare(after=self._from.checkpoint)
            settle_abandoned(self.path)
            remove_unfinished(self.path)
            self._events = _events(self._from, self._limit_bytes)
            if self._config is not None and saved_fields(self._config) != saved_content(self.path / CONFIG):
                self._config.save(self.path / CONFIG)
            write_starter(self.path)
        return self._events

    def discard(self) -> None:
        """Leave things as they were, because nothing could be run."""
        if self._copied and self._events is None:
            shutil.rmtree(self.path)  # in which there was nothing before

    def keep_earlier(self) -> bool:
        """The run has failed. If it had not even begun, it stands where it stood."""
        return self._events is None

    def position(self) -> Position:
        """How far the files of events are."""
        return self.begin().position_now()

    def write_result(self, summary: Mapping[str, object], model: Mapping[str, Tensor]) -> NotWritten | None:
        """Save the model, if there is one, and the summary; returns what is missing in the folder, if anything is."""
        events = self.begin()
        if self._end is not None:
            events.write(self._end)
        return save_result(self.path, events, summary, model)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _events(resumption: Resumption, limit_bytes: int) -> EventLog:
    """The event files, cut off where the checkpoint was made."""
    position, path = resumption.position, resumption.run / EVENTS
    if path.is_file() and path.stat().st_size >= position.num_bytes:
        return EventLog(resumption.run, limit_bytes, position=position)
    _logger.warning(
        "%s is not as long as it was at the checkpoint; it begins anew, with what the checkpoint knows of it", path
    )
    for each in (path, *segments(resumption.run).values()):
        if each.exists():
            each.replace(each.with_name(f"{each.name}.damaged"))
    events = EventLog(resumption.run, limit_bytes)
    for event in resumption.highlights:
        events.write(event)
    return events


def recorded(resumption: Resumption) -> Iterator[Event]:
    """What was recorded up to the checkpoint, for whoever shows the run; of long runs, its beginning."""
    path, rest = resumption.run / EVENTS, resumption.position.num_bytes
    with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as lines:
        while rest > 0:
            line = lines.readline()
            rest -= len(line)
            yield from_line(line.decode())


def _copy(resumption: Resumption, out: Path) -> Resumption:
    """The same run in another folder, which must hold none."""
    check_run(out, overwrite=False)
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty; a run that goes on needs a folder of its own: choose another with --out")
    run = resumption.run
    try:
        (out / CHECKPOINTS).mkdir(parents=True)
        for path in (run / CONFIG, run / EVENTS, *segments(run).values()):
            if path.is_file():
                shutil.copyfile(path, out / path.name)
        checkpoint = out / CHECKPOINTS / resumption.checkpoint.name
        shutil.copyfile(resumption.checkpoint, checkpoint)
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)
        raise InputError(f"{run} cannot be copied to {out}: {error}; choose another folder with --out") from None
    return replace(resumption, run=out, checkpoint=checkpoint)
