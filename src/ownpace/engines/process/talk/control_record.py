"""Messages about the run as JSON: each comes back as what it was, and nothing else passes for one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import cache

from ownpace.core.contract.errors import WireError
from ownpace.engines.process.talk.checked import build
from ownpace.engines.process.talk.control import Control

KINDS: dict[str, type[Control]] = {kind.__name__: kind for kind in typing.get_args(Control)}


def to_record(control: Control) -> dict[str, object]:
    """The message as what JSON can hold, its kind first."""
    return {"kind": type(control).__name__, **_fields(control)}


def _fields(message: object) -> dict[str, object]:
    # Not dataclasses.asdict, which copies every list in it: that was a fortieth of a quick loop's time.
    values = {name: getattr(message, name) for name in _names(type(message))}  # type: ignore[arg-type]  # see `checked`
    return {
        name: _fields(value) if _names(type(value)) else value  # type: ignore[arg-type]
        for name, value in values.items()
    }


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Of a dataclass's fields; of anything else, none."""
    return tuple(each.name for each in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def from_record(record: Mapping[str, object]) -> Control:
    """The message that a JSON object holds.

    Raises:
        WireError: It holds none: the kind is not known, or fields are missing, unknown or of another type.
    """
    fields = dict(record)
    kind = KINDS.get(str(fields.pop("kind", "")))
    if kind is None:
        raise WireError(f"a message about the run is of the unknown kind {repr(record.get('kind'))[:80]}")
    return build(kind, fields)
