"""The runs in a folder, each in a line; what is read of each is little, however long it was."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import EVENTS, checked_event
from ownpace.core.contract.events import Evaluation
from ownpace.run.config import CONFIG
from ownpace.run.place import SUMMARY, is_run
from ownpace.run.saved import label, saved_content, saved_fleet

MOST_DEPTH, MOST_RUNS = 3, 2000
_TAIL_BYTES = 1 << 16
"""Of the events of a run without a summary, in which its latest evaluation is looked for."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a line."""

    run: str
    algorithm: str
    task: str
    fleet: str
    accuracy: float | None
    loss: float | None
    state: str
    """`finished`, the code of what ended it, or `no end`: it is still running, or was cut off."""
    when: str
    """Of its last record."""

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return asdict(self)


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder and in those inside, the latest last.

    Raises:
        InputError: There is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give one that holds runs, as in runs")
    found = [(_when(path), path) for path in _runs(folder, MOST_DEPTH)]
    found.sort()
    return [_listed(path, when) for when, path in found[-MOST_RUNS:]]


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        if (folder / CONFIG).is_file() and is_run(folder / CONFIG):
            yield folder
            return
        if depth:
            inside = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
            for each in inside:
                if each.is_dir() and not each.is_symlink():
                    yield from _runs(each, depth - 1)


def _when(path: Path) -> float:
    for name in (EVENTS, CONFIG):
        with suppress(OSError):
            return (path / name).stat().st_mtime
    return 0.0


def _listed(path: Path, when: float) -> ListedRun:
    config, summary = _content(path / CONFIG), _content(path / SUMMARY)
    if summary:
        reason, code = summary.get("reason"), summary.get("code")
        state = "finished" if reason == "finished" else str(code or "early")
        accuracy, loss = summary.get("accuracy"), summary.get("loss")
    else:
        state = "no end"
        latest = _latest(path / EVENTS)
        accuracy, loss = (None, None) if latest is None else (latest.accuracy, latest.loss)
    return ListedRun(
        run=str(path),
        algorithm=_name(config.get("algorithm")),
        task=_name(config.get("task")),
        fleet=_fleet(config.get("fleet")),
        accuracy=accuracy if isinstance(accuracy, float | int) else None,
        loss=loss if isinstance(loss, float | int) else None,
        state=state[:20],
        when=datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M"),
    )


def _content(path: Path) -> Mapping[str, object]:
    with suppress(InputError):
        return saved_content(path)
    return {}


def _name(saved: object) -> str:
    return label(saved)[:40] if isinstance(saved, str) else "own"


def _fleet(saved: object) -> str:
    """The paces of its workers in thousands of samples per second, or how many there are."""
    fleet = saved_fleet(saved)
    if fleet is None:
        return "?"
    paces = [worker.machine.samples_per_s for worker in fleet.workers[:5]]
    if len(fleet.workers) > 4 or None in paces:
        return f"x{len(fleet.workers):,}"
    return ",".join(f"{(pace or 0) / 1000:g}" for pace in paces)


def _latest(path: Path) -> Evaluation | None:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        for line in reversed(file.read(_TAIL_BYTES).splitlines()):
            with suppress(ValueError):
                event = checked_event(line)
                if isinstance(event, Evaluation):
                    return event
    return None
