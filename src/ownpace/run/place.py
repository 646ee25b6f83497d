"""Where a run may be written: nothing that it did not write itself is replaced or deleted.

A run is known by its config.json, which no other program writes like this. Files of its names beside it are its own;
without it they are someone else's, and in the way.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.event_file import EVENTS, segments
from ownpace.run.config import CONFIG

MODEL, SUMMARY, FIGURE = "model.safetensors", "summary.json", "figure.png"
LOGS, CHECKPOINTS = "logs", "checkpoints"
COMPARISON = "comparison.json"
STARTED = "torchrun.json"
"""Which torchrun started the run, if one did."""
_FILES = (CONFIG, EVENTS, MODEL, SUMMARY, FIGURE, STARTED)
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")
"""As `whole_file` calls a file while it is being written."""
_LARGEST_MARK = 1 << 27
_ANOTHER = "choose another folder with --out"


def check_run(path: Path, *, overwrite: bool) -> bool:
    """Whether the folder holds an earlier run, which may be replaced.

    Raises:
        InputError: A run must not be written there.
    """
    return _check(path, _run_files, CONFIG, is_run, "a run", overwrite)


def check_comparison(path: Path, *, overwrite: bool) -> bool:
    """The same for the folder that holds all runs of a comparison."""
    return _check(path, lambda _: [COMPARISON, FIGURE], COMPARISON, _is_comparison, "a comparison", overwrite)


def check_no_folders(path: Path) -> None:
    """Raise InputError where a run that goes on would find a folder in place of a file of its own."""
    for name in _FILES:
        if (path / name).is_dir():
            raise InputError(f"{path / name} is a folder, where a run keeps a file of its own; move it")


def own_files(path: Path) -> list[Path]:
    """The files of the run in a folder, the one that marks it last."""
    names = [name for name in _run_files(path) if name != CONFIG]
    return [path / name for name in (*names, CONFIG) if _mode(path / name) and name != CHECKPOINTS]


def remove_unfinished(path: Path) -> None:
    """Remove what a process left of such files that was killed while it wrote them; no other process may write now."""
    for file in path.iterdir():
        found = _UNFINISHED.fullmatch(file.name)
        if found and found[1] in _FILES and stat.S_ISREG(_mode(file) or 0):
            file.unlink(missing_ok=True)


def is_run(path: Path) -> bool:
    """Whether a config.json is one that a run wrote."""
    content = _json(path)
    return isinstance(content, dict) and {"format", "ownpace", "algorithm", "task", "fleet"} <= set(content)


def _is_comparison(path: Path) -> bool:
    content = _json(path)
    runs = content.get("runs") if isinstance(content, dict) and "out" in content else None
    return isinstance(runs, list) and all(isinstance(run, dict) and {"algorithm", "engine"} <= set(run) for run in runs)


def _run_files(path: Path) -> list[str]:
    latest = [segment.name for segment in segments(path).values()] if path.is_dir() else []
    return [*_FILES, *latest, CHECKPOINTS]


def _check(
    path: Path,
    names: Callable[[Path], Sequence[str]],
    mark: str,
    is_mark: Callable[[Path], bool],
    what: str,
    overwrite: bool,
) -> bool:
    try:
        if path.resolve() == Path(path.resolve().anchor):
            raise InputError(f"--out was given {path}, the root of all folders; name one of its own: --out runs/first")
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a link to nothing; {_ANOTHER}")
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; --out takes a folder")
        present = list(_present(path, names(path)))
        earlier = mark in present and is_mark(path / mark)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a name that is none, links that lead to each other
        raise InputError(f"the folder {path} cannot be used: {error}; {_ANOTHER}") from None
    if present and not earlier:
        raise InputError(
            f"{path / present[0]} is in the way: no run of ownpace wrote it, so it is not replaced; "
            f"move it, or {_ANOTHER}"
        )
    if earlier and not overwrite:
        raise InputError(f"{path} already holds {what}; {_ANOTHER}, or add --overwrite")
    return earlier


def _present(path: Path, names: Sequence[str]) -> Iterator[str]:
    """Those of the names that are there."""
    for name in names:
        mode = _mode(path / name)
        if mode is None:
            continue
        is_right = stat.S_ISDIR(mode) if name == CHECKPOINTS else stat.S_ISREG(mode)
        # A link may lead to a file of the user's anywhere.
        if not is_right:
            kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "not a plain file"
            raise InputError(f"{path / name} is {kind}, where a run keeps its own; move it, or {_ANOTHER}")
        yield name


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def _json(path: Path) -> object:
    try:
        return None if path.stat().st_size > _LARGEST_MARK else json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
