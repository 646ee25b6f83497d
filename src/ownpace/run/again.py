"""A run that torchrun starts again after one of its ranks has failed: it goes on from its last checkpoint by itself.

torchrun runs the same command again, and no variable that all ranks can trust says so, since it counts restarts on each
host separately. So the folder of a run says which agent started it. The same agent, or one of a job of the same name
(`--rdzv-id`), goes on; any other is refused, as usual.

torchrun starts a run again, whatever made it fail. What another start cannot fix (a full disk, divergence) is noted in
that file, and said again at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ownpace.core.contract.errors import BY_CODE, DivergenceError, NotWritten, OwnpaceError
from ownpace.engines import is_main_process, started_by
from ownpace.run.checkpoints import Checkpoints
from ownpace.run.config import CONFIG
from ownpace.run.place import STARTED, is_run
from ownpace.run.resume import Resumption, find_resumption

_LENGTH = 4096
"""Bytes of the file, written at the start: a full disk has no room for more later."""
_FINAL = (DivergenceError, NotWritten)
"""What another start cannot fix."""


@dataclass(frozen=True)
class StartedAgain:
    """A run that torchrun has started before."""

    resumption: Resumption | None
    """What it goes on from; None: it had not come to a checkpoint, and begins anew in its folder."""


def started_again(out: Path | None) -> StartedAgain | None:
    """What torchrun's next start of the run in this folder goes on from; None: this is its first, or another run's.

    Raises:
        OwnpaceError: What made the run fail before, if no start can fix that.
        InputError: It has finished.
    """
    # Rank 0 alone: the others hear from it what they go on with, and may not see its folder.
    if out is None or not is_main_process() or not is_run_here(out):
        return None
    before, now = _read(out / STARTED), _starter()
    same = ("agent", "job")
    if not any(before.get(key) == now[key] is not None for key in same):
        return None
    if (kind := BY_CODE.get(str(before.get("code")))) is not None:
        raise kind(str(before.get("message")))
    if not Checkpoints(out).newest_first():
        return StartedAgain(None)
    return StartedAgain(find_resumption(out, {}))


def is_run_here(out: Path) -> bool:
    """Whether a folder holds a run of ours that says who started it."""
    with suppress(OSError):
        return (out / STARTED).is_file() and (out / CONFIG).is_file() and is_run(out / CONFIG)
    return False


def write_starter(folder: Path) -> None:
    """Say in a run's folder which torchrun started it, if one did."""
    if started_by() is not None:
        _write(folder / STARTED, _starter(), "w")


def note_failure(folder: Path | None, error: OwnpaceError | None) -> None:
    """Keep what made a run fail, if torchrun started it and another start cannot fix that."""
    if folder is None or not isinstance(error, _FINAL) or not (folder / STARTED).is_file():
        return
    message = str(error).encode()[: _LENGTH // 8].decode(errors="ignore")
    # Over what is there: there may be no room for a new file.
    _write(folder / STARTED, {**_read(folder / STARTED), "code": error.code, "message": message}, "r+")


def _starter() -> dict[str, str | None]:
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return {"agent": started_by(), "job": None if job == "none" else job}  # torchrun's own name for no name


def _read(path: Path) -> Mapping[str, object]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_bytes()[:_LENGTH])
        return content if isinstance(content, dict) else {}
    return {}


def _write(path: Path, content: Mapping[str, object], mode: str) -> None:
    # A run is not worse without it: torchrun's next start is then refused, as that of any other run.
    with suppress(OSError), path.open(mode, encoding="utf-8") as file:
        file.write(json.dumps(content).ljust(_LENGTH - 1) + "\n")
