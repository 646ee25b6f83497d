"""The checkpoints in a run's folder: written while it trains, kept a few deep, read when it goes on."""

from __future__ import annotations

import logging
import re
import shlex
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.state_file import StateFile, read_state, write_state
from ownpace.run.place import CHECKPOINTS

DAMAGED = ".damaged"
"""What the name of a checkpoint that could not be read ends with, once a run has gone on from an older one."""
_NAME = re.compile(r"(\d{15,})\.safetensors")
_UNFINISHED = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}\.part")
"""As `whole_file` calls a file while it is being written."""
_logger = logging.getLogger(__name__)


class Checkpoints:
    """The files `checkpoints/<samples>.safetensors` of one run."""

    def __init__(self, run: Path) -> None:
        self.folder = run / CHECKPOINTS

    def newest_first(self) -> list[Path]:
        """All that bear the name of a checkpoint, whole or not."""
        try:
            found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise InputError(f"the folder {self.folder} cannot be read: {error}") from None
        return sorted(found, key=samples_of, reverse=True)

    def write(self, samples: int, state: PlainState, about: PlainState, *, kept: int) -> Path:
        """Write one, and remove those that are too many.

        Raises:
            OSError: It could not be written; those before it are as they were.
        """
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{samples:015}.safetensors"
        write_state(path, state, about)
        # Only now that the new one is whole. Not those of more samples: only a run that goes on may remove them.
        older = [each for each in self.newest_first() if samples_of(each) < samples]
        for each in older[max(0, kept - 1) :]:
            each.unlink(missing_ok=True)
        return path

    def prepare(self, after: Path | None = None) -> None:
        """Make ready for a run that goes on after this checkpoint, or begins anew: remove what was cut off.

        Newer ones could not be read, or else nobody would go on from this one: they stay, under another name.
        """
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in self.newest_first():
            if after is not None and samples_of(path) > samples_of(after):
                path.replace(path.with_name(path.name + DAMAGED))

    def remove(self, newer_than: Path | None = None) -> None:
        """Remove those that a run which replaces this one, or goes on from before them, will not have."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if _is_ours(path.name) and (newer_than is None or samples_of(path) > samples_of(newer_than)):
                path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _is_ours(name: str) -> bool:
    return bool(_NAME.fullmatch(name.removesuffix(DAMAGED)) or _UNFINISHED.fullmatch(name))


def samples_of(path: Path) -> int:
    """How far the run was, from a checkpoint's name."""
    found = _NAME.search(path.name)
    return int(found[1]) if found else 0


def go_on_from(checkpoint: Path) -> str:
    """What to do after a run that ended early."""
    run = checkpoint.parent.parent
    return f"go on from sample {samples_of(checkpoint):,} with: ownpace train --resume {shlex.quote(str(run))}"


def readable(paths: list[Path]) -> Iterator[tuple[Path, StateFile | InputError]]:
    """Each of them, and what is in it or why it cannot be read, until one can."""
    for path in paths:
        try:
            found = read_state(path)
        except InputError as error:
            yield path, error
        else:
            yield path, found
            return


class _Waiting(NamedTuple):
    samples: int
    state: PlainState
    about: PlainState


class CheckpointWriter:
    """Writes checkpoints one at a time, in a thread of its own if training must not wait for it.

    What comes while one is being written waits, and only the newest of those is written: so a slow disk makes
    checkpoints rarer, and never more than two of them are in memory. A checkpoint that cannot be written is a warning.
    """

    def __init__(self, checkpoints: Checkpoints, *, kept: int, in_background: bool, last: Path | None = None) -> None:
        self._checkpoints = checkpoints
        self._kept = kept
        self._in_background = in_background
        self._lock = threading.Lock()
        self._waiting: _Waiting | None = None
        self._thread: threading.Thread | None = None
        self.last = last
        """The latest that is whole."""

    def take(self, samples: int, state: PlainState, about: Mapping[str, object]) -> None:
        """Write this, now or soon. The state must not change any more."""
        given = _Waiting(samples, state, about)
        if not self._in_background:
            self._write(given)
            return
        with self._lock:
            self._waiting = given
            if self._thread is None:
                # Not a daemon: Python waits for it at its end, whatever ends the run.
                self._thread = threading.Thread(target=self._write_waiting, name="ownpace-checkpoints")
                self._thread.start()

    def close(self) -> None:
        """Wait until all that waits is written."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                given, self._waiting = self._waiting, None
                if given is None:
                    self._thread = None
                    return
            self._write(given)

    def _write(self, given: _Waiting) -> None:
        try:
            self.last = self._checkpoints.write(given.samples, given.state, given.about, kept=self._kept)
        except (OSError, InputError) as error:
            before = f"the one at sample {samples_of(self.last):,} stays" if self.last else "there is none yet"
            _logger.warning(
                "the checkpoint at sample %s could not be written: %s; training goes on, and %s",
                f"{given.samples:,}", error, before,
            )  # fmt: skip
