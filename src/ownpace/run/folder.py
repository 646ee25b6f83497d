"""The files of one run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Event, to_line
from ownpace.run.config import CONFIG, Config

EVENTS, MODEL, SUMMARY = "events.jsonl", "model.safetensors", "summary.json"


class RunFolder:
    """The files of one run: resolved configuration, events, model, summary. Without a path it swallows them."""

    def __init__(self, path: Path | None, *, overwrite: bool) -> None:
        self.path = path
        if path is None:
            return
        self.check(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Results of an earlier run go first: if this one is cut off, they must not pass for its own.
            for name in (MODEL, SUMMARY):
                (path / name).unlink(missing_ok=True)
            self._events = (path / EVENTS).open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"the folder {path} cannot be written: {error}; choose another with --out") from None

    @staticmethod
    def check(path: Path, *, overwrite: bool) -> None:
        """Raise if a run must not be written there."""
        try:
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file; --out takes a folder")
            # Written before the run, so it also marks one that was cut off.
            if (path / CONFIG).exists() and not overwrite:
                raise InputError(f"{path} already holds a run; choose another folder with --out, or add --overwrite")
        except OSError as error:
            raise InputError(f"the folder {path} cannot be used: {error}; choose another with --out") from None

    def discard(self) -> None:
        """Remove what was written, because nothing could be run."""
        if self.path is not None:
            self._events.close()
            for name in (CONFIG, EVENTS):
                (self.path / name).unlink(missing_ok=True)
            # Other files in it are the user's.
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *details: object) -> None:
        if self.path is not None:
            self._events.close()

    def write_config(self, config: Config) -> None:
        """Save what is run."""
        if self.path is not None:
            config.save(self.path / CONFIG)

    def write_event(self, event: Event) -> None:
        """Append one event."""
        if self.path is not None:
            self._events.write(to_line(event) + "\n")

    def write_result(self, summary: Mapping[str, object], model: Mapping[str, Tensor]) -> None:
        """Save the summary and, if there is one, the model."""
        if self.path is None:
            return
        if model:
            save_file({name: value.cpu().contiguous() for name, value in model.items()}, self.path / MODEL)
            shutil.copymode(self.path / CONFIG, self.path / MODEL)  # save_file makes it readable for its owner alone
        # The summary last: a folder that has one is complete.
        text = json.dumps(summary, indent=2, allow_nan=False)
        (self.path / SUMMARY).write_text(text + "\n", encoding="utf-8")
