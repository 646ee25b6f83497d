"""Dataclasses from JSON that others wrote: every value, also within lists, has to be what the field's type says.

Python would take a string for a number until it computes with it, and NaN for a time for ever.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, TypeVar

from ownpace.core.contract.errors import WireError

T = TypeVar("T")
_NOT_NEGATIVE = "not negative"
Count = Annotated[int, _NOT_NEGATIVE]
"""A whole number from 0 on."""
_MOST = 1 << 63
_Check = Callable[[object], bool]


def build(kind: type[T], record: Mapping[str, object]) -> T:
    """A dataclass of this kind from a JSON object.

    Raises:
        WireError: Fields are missing, unknown or of another type; numbers are not finite or do not fit into 64 bits.
    """
    checks = _checks(kind)  # type: ignore[arg-type]  # a class is hashable
    if record.keys() != checks.keys():
        raise WireError(f"a {kind.__name__} with the fields {str(sorted(record))[:200]} instead of {sorted(checks)}")
    values: dict[str, object] = {}
    for name, value in record.items():
        nested, check = checks[name]
        if nested is not None and isinstance(value, dict):
            values[name] = build(nested, value)
        elif nested is None and check(value):
            values[name] = value
        else:
            raise WireError(f"a {kind.__name__} whose {name} is {repr(value)[:80]}")
    return kind(**values)


@cache
def _checks(kind: type) -> dict[str, tuple[type | None, _Check]]:
    """For each field: the dataclass that it holds, if it does, or what tells whether a value is one of its type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[type | None, _Check]] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        nested = hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
        found[field.name] = (nested, _check(hint) if nested is None else lambda value: False)
    return found


def _check(hint: object) -> _Check:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return lambda value: _is_whole(value) and value >= 0  # type: ignore[operator]  # it is a number
    if origin is list:
        of_each = _check(inner[0])
        return lambda value: isinstance(value, list) and all(map(of_each, value))
    if origin is dict:
        of_value = _check(inner[1])  # keys are text: JSON has no others
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    if origin in (typing.Union, UnionType):
        any_of = [_check(each) for each in inner]
        return lambda value: any(check(value) for check in any_of)
    plain: dict[object, _Check] = {
        str: lambda value: isinstance(value, str),
        bool: lambda value: isinstance(value, bool),
        int: _is_whole,
        float: _is_finite,
        NoneType: lambda value: value is None,
    }
    return plain[hint]


def _is_whole(value: object) -> bool:
    # bool is a kind of int to Python, but not to whoever reads the field.
    return type(value) is int and -_MOST <= value < _MOST


def _is_finite(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
