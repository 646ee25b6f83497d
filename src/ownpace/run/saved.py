"""What the JSON files of a run say, and what to call what they name: without torch, so that lists of runs are quick."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ownpace.core.bounded_read import read_bounded
from ownpace.core.contract.errors import InputError
from ownpace.fleet import Fleet, fleet_from

MOST_BYTES = 1 << 27
"""Of one of these files."""


def saved_content(path: Path) -> dict[str, object]:
    """What a JSON file of the run holds."""
    try:
        content = json.loads(read_bounded(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}


def saved_fleet(saved: object) -> Fleet | None:
    """The fleet that a run's configuration has; None: that cannot be used."""
    try:
        return fleet_from(saved) if isinstance(saved, Mapping) else None
    except InputError:
        return None


def label(thing: object) -> str:
    """What to call a thing, or the thing of that name, in records and folders.

    >>> label("sync"), label("mymodule:Outer.Patient")
    ('sync', 'Patient')
    """
    return thing.replace(":", ".").rsplit(".", 1)[-1] if isinstance(thing, str) else type(thing).__name__
