"""The files of one run."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ownpace.core.contract.errors import InputError, NotWritten
from ownpace.core.contract.events import End, Evaluation, Event, Run
from ownpace.core.whole_file import whole_file, write_text
from ownpace.run.again import write_starter
from ownpace.run.checkpoints import Checkpoints
from ownpace.run.config import CONFIG, Config
from ownpace.run.event_log import EventLog, Position
from ownpace.run.folder_lock import FolderLock
from ownpace.run.place import LOGS, MODEL, SUMMARY, check_run, own_files, remove_unfinished
from ownpace.run.waiting_folder import WaitingFolder, settle_abandoned

_logger = logging.getLogger(__name__)


class RunFolder:
    """The files of one run: resolved configuration, events, model, summary. Without a path it swallows them.

    Where it replaces an earlier run, its files lie in a folder inside until it has really begun: up to then, whatever
    ends it, the earlier run is still whole.
    """

    checkpoint: Path | None = None
    """Nothing: the run begins."""

    def __init__(self, path: Path | None, *, overwrite: bool, events_limit_mb: int = 0) -> None:
        self.path = path
        self._has_begun = False
        if path is None:
            return
        settle_abandoned(path)
        self._replaces = check_run(path, overwrite=overwrite)
        try:
            self._made = _make_folders(path)
            self._lock = FolderLock(path)
            try:
                self._open(path, events_limit_mb * 1_000_000)
            except OSError:
                self._lock.release()
                raise
        except OSError as error:
            raise InputError(f"the folder {path} cannot be written: {error}; choose another with --out") from None

    def _open(self, path: Path, limit_bytes: int) -> None:
        self._had_logs = (path / LOGS).exists()
        self._waiting = WaitingFolder(path) if self._replaces else None
        self._place = path if self._waiting is None else self._waiting.path
        self._events = EventLog(self._place, limit_bytes)

    def discard(self) -> None:
        """Remove what was written, because nothing could be run."""
        if self.path is None:
            return
        self._events.close()
        if self._waiting is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._waiting.release()
        else:
            Checkpoints(self.path).remove()
            for file in own_files(self.path):  # there was none before
                file.unlink()
        if not self._had_logs:
            shutil.rmtree(self.path / LOGS, ignore_errors=True)
        # Only folders that this run made; other files in them are the user's.
        for folder in self._made:
            if any(folder.iterdir()):
                break
            folder.rmdir()
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self.path is not None:
            self._events.close()
            if kind is not None and self._replaces and not self._has_begun:
                self.discard()
            self._lock.release()

    def begin(self) -> None:
        """The run has begun: now it takes the place of an earlier one."""
        if self._has_begun or self.path is None:
            return
        self._has_begun = True
        if self._waiting is None:
            return
        # Old results first, and what marks them last: cut off here, they must not pass for this run's.
        Checkpoints(self.path).remove()
        for file in own_files(self.path):
            file.unlink()
        remove_unfinished(self.path)
        self._waiting.move_to(self.path)
        self._place = self.path

    def keep_earlier(self) -> bool:
        """The run has failed. If it had not even begun, the run that it would have replaced stays as it is."""
        if self.path is None or self._has_begun or not self._replaces:
            return False
        self.discard()
        _logger.warning("%s still holds the earlier run, since this one ended before it had begun", self.path)
        return True

    def write_config(self, config: Config) -> None:
        """Save what is run.

        Raises:
            InputError: There is no room for it.
        """
        if self.path is None:
            return
        try:
            config.save(self._place / CONFIG)
            write_starter(self._place)
        except OSError as error:
            raise InputError(f"the folder {self.path} cannot be written: {error}; choose another with --out") from None

    def write_event(self, event: Event) -> None:
        """Append one event."""
        if self.path is None:
            return
        self._events.write(event)
        # What comes before the first update and its work is still start-up, which may fail.
        if not self._has_begun and not (
            isinstance(event, Run | End) or (isinstance(event, Evaluation) and not event.updates)
        ):
            self.begin()

    def position(self) -> Position:
        """How far the files of events are."""
        return self._events.position_now()

    def write_result(self, summary: Mapping[str, object], model: Mapping[str, Tensor]) -> NotWritten | None:
        """Save the model, if there is one, and the summary; returns what is missing in the folder, if anything is."""
        if self.path is None:
            return None
        self.begin()
        return save_result(self.path, self._events, summary, model)


def save_result(
    path: Path, events: EventLog, summary: Mapping[str, object], model: Mapping[str, Tensor]
) -> NotWritten | None:
    """Save what came out of a run, and close its events; returns what is missing in the folder, if anything is."""
    missing = []
    # The model first: if there is room for one thing, it is this.
    without = _try(events, lambda: _save(model, path / MODEL)) if model else None
    if without is not None:
        missing.append(f"the model ({without})")
    events.close()
    if events.error is not None:
        missing.append(f"a part of the events ({_reason(events.error)})")
    # The summary last, and not without the model: a folder that has one is complete, and its run does not go on.
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    if without is None and (error := _try(events, lambda: write_text(path / SUMMARY, text))):
        missing.append(f"the summary ({error})")
    if not missing:
        return None
    rest = "the model is whole" if model and without is None else _to_have_it(path)
    return NotWritten(f"{path} lacks {' and '.join(missing)}; {rest}")


def _to_have_it(path: Path) -> str:
    """How to have what a run could not write."""
    return f"make room, and {'go on' if Checkpoints(path).newest_first() else 'run it again with --overwrite'}"


def _try(events: EventLog, write: Callable[[], None]) -> str | None:
    """Write a file, at the cost of recorded detail if need be; returns why it could not be done."""
    try:
        write()
    except OSError:
        events.make_room()
        try:
            write()
        except OSError as error:
            return _reason(error)
    return None


def _make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it; returns those that were not there, the innermost first."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return made


def _save(model: Mapping[str, Tensor], path: Path) -> None:
    tensors = {name: value.cpu().contiguous() for name, value in model.items()}
    with whole_file(path) as part:
        try:
            save_file(tensors, part)
        except SafetensorError as error:  # which is what it makes of an OSError
            raise OSError(str(error)) from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
