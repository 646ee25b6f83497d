"""Runs of the past, from their folders: what a report shows of each. A folder is foreign data, and may be damaged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ownpace.core.bounded_read import read_bounded
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import EVENTS, read_columns, read_events
from ownpace.core.contract.events import Event
from ownpace.report.digest import digest
from ownpace.report.page import PageRun
from ownpace.run.config import CONFIG
from ownpace.run.place import COMPARISON
from ownpace.run.saved import MOST_BYTES, saved_content, saved_fleet

T = TypeVar("T")
MOST_FOUND = 1000
"""Runs in one folder."""
MOST_DETAIL_BYTES = 1 << 27
"""Of one run; more takes minutes to read, and is not shown anyway."""


def find_runs(given: Sequence[Path]) -> list[Path]:
    """The folders of the runs that are meant: each is one itself, or holds some.

    Raises:
        InputError: A folder is none and holds none.
    """
    found: dict[Path, None] = {}
    for path in given:
        if _is_run(path):
            inside = [path]
        elif path.is_dir():
            order = _order(path)
            inside = [each for each in sorted(path.iterdir(), key=order) if _is_run(each)][:MOST_FOUND]
        else:
            raise InputError(f"there is no folder {path}; give that of a run, as in runs/first")
        if not inside:
            raise InputError(f"{path} is neither a run nor a folder of runs; give a folder that has an {EVENTS}")
        found.update(dict.fromkeys(inside))
    return list(found)


def _order(folder: Path) -> Callable[[Path], tuple[int, str]]:
    """The order in which a comparison was asked for; of other folders, that of their names."""
    names: list[str] = []
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        content = json.loads(read_bounded(folder / COMPARISON, MOST_BYTES))
        names = [Path(str(run["out"])).name for run in content["runs"]]
    place = {name: at for at, name in enumerate(names)}
    return lambda path: (place.get(path.name, len(names)), path.name)


def _is_run(path: Path) -> bool:
    with suppress(OSError):
        return (path / EVENTS).is_file()
    return False


def open_runs(folders: Sequence[Path]) -> Iterator[PageRun]:
    """What a report shows of these runs, one after the other.

    Raises:
        InputError: One has no first record.
    """
    for folder, name in zip(folders, _names(folders), strict=True):
        yield open_run(folder, name)


def open_run(folder: Path, name: str) -> PageRun:
    """What a report shows of one run; what is damaged is said and left out.

    Raises:
        InputError: It has no first record.
    """
    problems: list[str] = []
    settings: Mapping[str, object] = {}
    try:
        settings = saved_content(folder / CONFIG)
    except InputError as error:
        problems.append(str(error))
    events = _readable(read_columns(folder / EVENTS, MOST_DETAIL_BYTES), problems)
    found = digest(events, _classes(settings.get("fleet")))
    return PageRun(name, found, settings, _repeat(folder, settings), "; ".join(problems) or None)


def events_by_name(folders: Sequence[Path], problems: list[str], *, detail: bool = True) -> dict[str, Iterator[Event]]:
    """The events of each run, by its name, read as they are asked for; what is damaged is added to `problems`.

    Without detail only what is not detail is read, however much of that there is.
    """
    most = MOST_DETAIL_BYTES if detail else 0
    names = _names(folders)
    return {
        name: _readable(read_events(each / EVENTS, most), problems) for name, each in zip(names, folders, strict=True)
    }


def began_at(folder: Path) -> float:
    """About when a run began, in seconds since 1970: when its first file was written."""
    for name in (CONFIG, EVENTS):
        with suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def _readable(events: Iterator[T], problems: list[str]) -> Iterator[T]:
    """The events up to the first that cannot be read: the last line of a run that was killed is often half a line."""
    yield from islice(events, 1)  # if that cannot be read, there is no run
    try:
        yield from events
    except InputError as error:
        problems.append(str(error))


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each folder's name, or as much of it as tells them apart."""
    names = [folder.resolve().name for folder in folders]
    return [
        str(folder) if names.count(name) > 1 else name or str(folder)
        for folder, name in zip(folders, names, strict=True)
    ]


def _classes(fleet: object) -> dict[str, str]:
    """What the machine of each worker is called; those of one name and different pace are told apart by it."""
    known = saved_fleet(fleet)
    if known is None:
        return {}
    paces: dict[str, set[float | None]] = {}
    for machine in known.machine:
        paces.setdefault(machine.name, set()).add(machine.samples_per_s)
    return {
        worker.name: worker.machine.name
        if len(paces[worker.machine.name]) == 1
        else f"{worker.machine.name}, {worker.machine.samples_per_s or 0:,.0f}/s"
        for worker in known.workers
    }


def _repeat(folder: Path, settings: Mapping[str, object]) -> str:
    for name in ("algorithm", "task", "optimizer"):
        value = settings.get(name)
        if isinstance(value, Mapping):
            return f"It can be repeated from Python alone: its {name} was {str(value.get('object'))[:200]}."
    if not settings:
        return "It cannot be repeated: its configuration cannot be read."
    return f"ownpace train --config {shlex.quote(str(folder / CONFIG))}"
