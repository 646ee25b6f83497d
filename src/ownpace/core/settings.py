"""Frozen dataclasses out of what users write: `-p staleness=3`, a table of a TOML file."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from ownpace.core.contract.errors import InputError, unknown

T = TypeVar("T")


def build(cls: type[T], given: Mapping[str, object], *, where: str) -> T:
    """Make a `cls` from named values, which may be strings; `where` says in errors whose values they are.

    Raises:
        InputError: A name is unknown or missing, or a value does not fit its field's type.
    """
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    for name in given:
        if name not in fields:
            raise unknown(f"key in {where}:", name, [known for known in fields if known != "model_name"])
    required = [name for name, field in fields.items() if _required(field) and name not in given]
    if required:
        raise InputError(f"{where} lacks {' and '.join(required)}; add {required[0]}=…")
    values = {name: convert(value, hints[name], f"{name} in {where}") for name, value in given.items()}
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def convert(value: object, hint: Any, where: str) -> Any:
    """`value` as the type `hint`, which may be a plain type, a Literal, or an optional one of those."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in options:
            raise InputError(f"{where} is {value!r}; allowed: {', '.join(map(str, options))}")
        return value
    if origin in (Union, types.UnionType):
        if value is None or value == "none":
            return None
        return convert(value, next(option for option in options if option is not type(None)), where)
    if origin is tuple and isinstance(value, tuple):
        return value  # of dataclasses that were built before
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    try:
        if hint is bool and isinstance(value, str):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        if hint is int and isinstance(value, str):
            return int(value)
        if hint is float and isinstance(value, str | int) and not isinstance(value, bool):
            return float(value)
    except (ValueError, KeyError, OverflowError):
        pass
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}.get(hint, hint)
    raise InputError(f"{where} is {value!r}; it must be {wanted}")


def describe(cls: type) -> dict[str, str]:
    """The parameters of a dataclass with their defaults, for people to read."""
    return {
        field.name: "required" if _required(field) else str(field.default)
        for field in dataclasses.fields(cls)
        if field.init
    }


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def positive(**values: float | None) -> None:
    """Check that each named value, if given, is a finite number above zero."""
    for name, value in values.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}; it must be a finite number above 0")


def not_negative(**values: float | None) -> None:
    """Check that each named value, if given, is a finite number of at least zero."""
    for name, value in values.items():
        if value is not None and not 0 <= value < float("inf"):
            raise InputError(f"{name} is {value}; it must be a finite number of at least 0")
