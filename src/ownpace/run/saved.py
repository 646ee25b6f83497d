"""What the JSON files of a run say, and what to call what they name: without torch, so that lists of runs are quick."""

from __future__ import annotations

import json
from pathlib import Path

from ownpace.core.contract.errors import InputError

MOST_BYTES = 1 << 27
"""Of one of these files."""


def saved_content(path: Path) -> dict[str, object]:
    """What a JSON file of the run holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}


def label(thing: object) -> str:
    """What to call a thing, or the thing of that name, in records and folders.

    >>> label("sync"), label("mymodule:Outer.Patient")
    ('sync', 'Patient')
    """
    return thing.replace(":", ".").rsplit(".", 1)[-1] if isinstance(thing, str) else type(thing).__name__
