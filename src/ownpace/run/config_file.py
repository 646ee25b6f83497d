"""The description of a run as a JSON file, and read again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from ownpace.core.bounded_read import read_bounded
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, shown, unknown
from ownpace.core.learning.task import Task
from ownpace.core.own_code import digest_in_use, digest_now
from ownpace.core.version import __version__
from ownpace.fleet import Fleet, fleet_from
from ownpace.run.names import CannotBeNamedError, name_of, recipe_of
from ownpace.run.saved import MOST_BYTES

FORMAT = 1
_OBJECT, _WHY = "object", "cannot_be_saved_because"
_CODE = "code"
_NAMED = ("algorithm", "task", "optimizer")
"""What may be a thing of the user's own."""
_logger = logging.getLogger(__name__)


def to_text(fields: Mapping[str, object]) -> str:
    """The fields of a `Config` as JSON. Things of the user's own become names, where there is one to import them by."""
    content = {"format": FORMAT, "ownpace": __version__, **fields}
    algorithm, task, fleet, optimizer = (fields[name] for name in ("algorithm", "task", "fleet", "optimizer"))
    if isinstance(algorithm, Algorithm):
        content.update(_or_reason("algorithm", algorithm, lambda: _algorithm(algorithm)))
    if isinstance(task, Task):
        content.update(_or_reason("task", task, lambda: _task(task)))
    # Not by name: a preset or a file may change, and the run must stay the same.
    if isinstance(fleet, Fleet):
        content["fleet"] = asdict(fleet)
    if not isinstance(optimizer, str):
        content.update(_or_reason("optimizer", optimizer, lambda: {"optimizer": name_of(optimizer)}))
    if digests := _digests(content, digest_in_use):
        content[_CODE] = digests
    try:
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(
            f"this configuration cannot be saved: {error}; use numbers, strings and truth values"
        ) from None


def _algorithm(algorithm: Algorithm) -> dict[str, object]:
    name, parameters = recipe_of(algorithm)
    return {"algorithm": name, "parameters": parameters}


def _task(task: Task) -> dict[str, object]:
    name, parameters = recipe_of(task)
    model = parameters.pop("model_name") if task.models else None
    return {"task": name, "task_parameters": parameters, "model": model}


def _or_reason(name: str, thing: object, named: Callable[[], dict[str, object]]) -> dict[str, object]:
    try:
        return named()
    except CannotBeNamedError as error:
        return {name: {_OBJECT: repr(thing), _WHY: str(error)}}


def _digests(fields: Mapping[str, object], digest: Callable[[str], str | None]) -> dict[str, str]:
    """A digest of the code that each thing of the user's own comes from."""
    found: dict[str, str] = {}
    for name in _NAMED:
        place = str(fields.get(name)).rpartition(":")[0] if isinstance(fields.get(name), str) else ""
        if place and not place.startswith("ownpace.") and (known := digest(place)) is not None:
            found[name] = known
    return found


def _warn_of_changes(path: Path, fields: Mapping[str, object], before: object) -> None:
    """Say which code is not what it was when the file was written: the same description may be of another run now."""
    now = _digests(fields, digest_now)
    for name, digest in before.items() if isinstance(before, Mapping) else ():
        if now.get(name, digest) != digest:
            _logger.warning("the code of %s %s was changed since %s was written", name, fields[name], path)


def read(path: Path, known: Collection[str], instead: Mapping[str, object]) -> dict[str, object]:
    """The fields in a file that `to_text` wrote, or that was written by hand; those left out keep their defaults.

    What is in `instead` replaces what the file says, even if that could not be made again.

    Raises:
        InputError: The file cannot be read, does not describe a run, or holds something that cannot be made again.
    """
    fields = _content(path)
    digests = fields.pop(_CODE, {})
    for name in fields:
        if name not in known:
            raise unknown(f"key in {path}:", name, known)
    fields.update(instead)
    _warn_of_changes(path, fields, digests)
    for name in _NAMED:
        value = fields.get(name)
        if isinstance(value, Mapping):
            raise InputError(
                f"{path}: the {name} was {str(value.get(_OBJECT))[:200]}, which cannot be made again: "
                f"{str(value.get(_WHY))[:200]}; "
                f"give another {name}, or run it from Python"
            )
    fleet = fields.get("fleet")
    if isinstance(fleet, Mapping):
        try:
            fields["fleet"] = fleet_from(fleet)
        except InputError as error:
            raise InputError(f"{path}: fleet: {error}") from None
    return fields


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number that JSON has")


def _content(path: Path) -> dict[str, object]:
    """The fields in the file, its format and version checked and taken out."""
    try:
        content = json.loads(read_bounded(path, MOST_BYTES).decode("utf-8-sig"), parse_constant=_refuse)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; give the config.json of a run") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}; give the config.json of a run") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise InputError(f"{path} is not JSON: {str(error)[:200]}; give the config.json of a run") from None
    # The format first: of another one, nothing that follows can be relied on.
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f'{path} does not describe a run: it has no "format"; give the config.json of a run')
    if (given := content.pop("format")) != FORMAT:
        writer = str(content.get("ownpace", "(unknown)"))[:40]
        raise InputError(
            f"{path} has format {shown(given)}, but this is ownpace {__version__}, which reads format {FORMAT}; "
            f"it was written by ownpace {writer}: use that version, or write it anew"
        )
    # Another version is only a warning: the format is the same, and most runs will be, too.
    if (version := content.pop("ownpace", __version__)) != __version__:
        _logger.warning(
            "%s was written by ownpace %s; this is %s, which may run it differently",
            path,
            str(version)[:40],
            __version__,
        )
    return content
