"""A run that goes on: which checkpoint, with what description, and what may be changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.events import Event, from_line, to_line
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.state_file import StateFile
from ownpace.core.own_code import absolute
from ownpace.core.settings import values_of
from ownpace.engines import is_main_process
from ownpace.run import config_file
from ownpace.run.checkpoints import Checkpoints, readable, samples_of
from ownpace.run.config import CONFIG, Config
from ownpace.run.event_log import Position
from ownpace.run.place import CHECKPOINTS, SUMMARY
from ownpace.run.saved import saved_content

CHANGEABLE = (
    "fleet", "samples", "epochs", "seconds", "device", "log_files", "checkpoint_every", "checkpoints_kept",
    "on_failure", "min_workers", "max_workers",
)  # fmt: skip
"""What a run that goes on may have otherwise than before. Anything else would make another run of it."""
LENGTH = ("samples", "epochs", "seconds")
OBJECTS: Mapping[str, tuple[str, ...]] = {
    "algorithm": ("parameters",),
    "task": ("task_parameters", "model"),
    "optimizer": (),
}
"""What may be a thing of the user's own, and the fields that then say nothing."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumption:
    """What a run goes on from."""

    run: Path
    """Its folder."""
    checkpoint: Path
    state: PlainState
    config: Config
    """The run's own, but for what was changed."""
    position: Position
    """How far its event files were."""
    highlights: list[Event]
    """What its summary is made of."""
    wall_seconds: float

    @property
    def samples(self) -> int:
        """How far the run was."""
        return samples_of(self.checkpoint)

    def is_newest(self) -> bool:
        """Whether no other checkpoint is newer, but for those that cannot be read."""
        newer = [path for path in Checkpoints(self.run).newest_first() if samples_of(path) > self.samples]
        return all(isinstance(found, InputError) for _, found in readable(newer))


def find_resumption(path: str | Path, changes: Mapping[str, object]) -> Resumption:
    """What a run goes on from: its newest checkpoint that is whole.

    Args:
        path: The folder of the run, or one of its checkpoints.
        changes: Fields of `Config` that are to be otherwise than before.

    Raises:
        InputError: There is nothing to go on from, or a change would make another run of it.
    """
    path = Path(path)
    is_folder = path.is_dir()
    run = path if is_folder else path.parent.parent
    if not (run / CONFIG).is_file() or not (is_folder or path.parent.name == CHECKPOINTS):
        raise InputError(f"{path} is neither the folder of a run nor a checkpoint in one; give one that has a {CONFIG}")
    config = _with_changes(run, changes)
    checkpoint, file = _newest(run) if is_folder else _this(run, path)
    _check_same_run(checkpoint, file, run / CONFIG)
    found = _resumption(run, checkpoint, file, config)
    # Naming a checkpoint asks for what follows it to be done again.
    if is_folder and not any(name in changes for name in LENGTH) and _has_finished(run):
        raise InputError(f"the run at {run} has finished; to train longer, give --epochs, --samples or --seconds")
    _check_length(found)
    return found


def about_run(config: Config, position: Position, highlights: list[Event], wall_seconds: float) -> PlainState:
    """What a checkpoint says of the run that it is of, besides its state."""
    return {
        "config": saved_fields(config),
        "records": asdict(position),
        "highlights": [to_line(event) for event in highlights],
        "wall_seconds": wall_seconds,
    }


def _resumption(run: Path, checkpoint: Path, file: StateFile, config: Config) -> Resumption:
    match file.about:
        case {"records": dict(records), "highlights": [*lines], "wall_seconds": float(wall_seconds)}:
            with suppress(ValueError, KeyError, TypeError):
                position, highlights = Position(**records), [from_line(str(line)) for line in lines]
                return Resumption(run, checkpoint, file.state, config, position, highlights, wall_seconds)
    raise InputError(f"{checkpoint} does not say how far its run was, so the run cannot go on from it")


def saved_fields(config: Config) -> dict[str, object]:
    """The description as it stands in config.json, to be kept in each checkpoint."""
    content: dict[str, object] = json.loads(config_file.to_text(values_of(config)))
    return content


def _newest(run: Path) -> tuple[Path, StateFile]:
    found = Checkpoints(run).newest_first()
    if not found:
        again = f"run it again: ownpace train --config {run / CONFIG}, and write some with --checkpoint-every"
        if _has_finished(run):
            raise InputError(f"the run at {run} has finished, and has no checkpoint; to train longer, {again}")
        raise InputError(f"{run} has no checkpoint to go on from; {again}")
    reasons: list[str] = []
    for path, content in readable(found):
        if isinstance(content, StateFile):
            if reasons and is_main_process():
                _logger.warning("%s; going on from the one before it, at sample %s", "; ".join(reasons),
                                f"{samples_of(path):,}")  # fmt: skip
            return path, content
        reasons.append(str(content))
    raise InputError(f"{run} has no checkpoint that is whole: {'; '.join(reasons)}")


def _this(run: Path, path: Path) -> tuple[Path, StateFile]:
    ((_, content),) = readable([path])
    if isinstance(content, StateFile):
        return path, content
    older = [each for each in Checkpoints(run).newest_first() if samples_of(each) < samples_of(path)]
    before = next((each for each, found in readable(older) if isinstance(found, StateFile)), None)
    offer = "there is no older one" if before is None else f"the one before it is whole: --resume {before}"
    raise InputError(f"{content}; {offer}")


def _check_same_run(checkpoint: Path, file: StateFile, config: Path) -> None:
    """Raise if a checkpoint is of another run than the description beside it."""
    described, saved = saved_content(config), file.about.get("config")
    if not isinstance(saved, dict):
        raise InputError(f"{checkpoint} is no checkpoint of ownpace train; load it where it was saved: fleet.load")
    for name, value in saved.items():
        # What cannot be saved is described by words, which may differ each time.
        known = name not in (*CHANGEABLE, "format", "ownpace", "code") and not (
            name in OBJECTS and isinstance(value, dict)
        )
        if known and described.get(name) != value:
            raise InputError(
                f"{checkpoint} is of another run: its {name} was {_brief(value)}, but {config} says "
                f"{_brief(described.get(name))}; put the right one back, or begin a new run"
            )


def _with_changes(run: Path, changes: Mapping[str, object]) -> Config:
    """The run's description with what is to be otherwise, if that may be."""
    content = saved_content(run / CONFIG)
    # Things of the user's own are given again, at least those that could not be made from a name.
    again = {name: changes[name] for name in OBJECTS if not isinstance(changes.get(name, ""), str)}
    cleared: dict[str, object] = {field: None if field == "model" else {} for name in again for field in OBJECTS[name]}
    config = Config.load(run, **again, **cleared)
    saved = saved_fields(config)
    for name in again:
        if not isinstance(content.get(name), dict):
            for field in (name, *OBJECTS[name]):
                _refuse_change(run, field, saved[field], content.get(field))
    changed = {name: value for name, value in changes.items() if name not in again}
    changed |= {name: absolute(value) for name, value in changed.items() if name in OBJECTS}
    for name, value in changed.items():
        if name not in CHANGEABLE and not _says_the_same(getattr(config, name), value):
            _refuse_change(run, name, value, getattr(config, name))
    return config.override(**{name: value for name, value in changed.items() if name in CHANGEABLE})


def _refuse_change(run: Path, name: str, value: object, before: object) -> None:
    if value != before:
        raise InputError(
            f"{name} is {_brief(value)}, but the run at {run} has {_brief(before)}, and a run that goes on cannot "
            f"change that; leave it out, or begin a new run with --config {run / CONFIG}"
        )


def _says_the_same(before: object, value: object) -> bool:
    """Whether parameters that are given as text are those that the run has."""
    if not isinstance(before, Mapping) or not isinstance(value, Mapping):
        return False
    return all(name in before and str(before[name]) == str(each) for name, each in value.items())


def _check_length(found: Resumption) -> None:
    samples = found.config.samples
    if samples is not None and samples <= found.samples:
        raise InputError(
            f"samples is {samples:,}, but the checkpoint {found.checkpoint} is at sample {found.samples:,} already; "
            "give more"
        )


def _has_finished(run: Path) -> bool:
    try:
        return saved_content(run / SUMMARY).get("reason") == "finished"
    except InputError:  # cut off, so there is no summary
        return False


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
