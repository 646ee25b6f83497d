"""Frozen dataclasses from what users write: `-p staleness=3`, a table of a TOML file, the JSON of an earlier run."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar, Union

from ownpace.core.contract.errors import InputError, shown, unknown

T = TypeVar("T")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", types.NoneType: "None"}
_WORDS |= {Mapping: "a mapping of names to values", Sequence: "a list"}
LARGEST = 10**15
"""No number that a user gives may be larger: neither counts nor sums of floats are exact far beyond, and nothing that
is that long comes to an end."""
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def build(
    cls: Callable[..., T], given: Mapping[str, object], *, where: str, fixed: Mapping[str, object] | None = None
) -> T:
    """Make an instance of the dataclass `cls` from named values, which may be strings.

    Args:
        cls: The dataclass.
        given: What the user gave, by field.
        where: What the values belong to, for errors.
        fixed: Fields that the caller decides, and which the user therefore cannot give.

    Raises:
        InputError: A name is unknown or missing, or a value does not fit its field's type.
    """
    fixed = fixed or {}
    fields = _fields(cls, but=fixed)
    hints: Mapping[str, object] = typing.get_type_hints(cls)
    for name in given:
        if name not in fields:
            raise unknown(f"key in {where}:", name, fields)
    required = [name for name, field in fields.items() if _required(field) and name not in given]
    if required:
        are = "is" if len(required) == 1 else "are"
        raise InputError(f"{' and '.join(required)} {are} missing in {where}; add {required[0]}=…")
    values = {name: convert(value, hints[name], f"{name} in {where}") for name, value in given.items()}
    try:
        return cls(**values, **fixed)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def convert(value: object, hint: object, where: str) -> object:
    """`value` as the type `hint`: a plain type, a Literal, a tuple of one type, or an optional one of those."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in options:
            raise InputError(f"{where} is {shown(value)}; allowed: {', '.join(map(str, options))}")
        return value
    if origin in (Union, types.UnionType):
        # The word, because the command line has no other way to give None.
        if value is None or value == "none":
            return None
        return convert(value, next(option for option in options if option is not types.NoneType), where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(item, options[0], where) for item in value)
    try:
        # A bool is an int to Python: `true` would silently become 1.0.
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str) and hint in (bool, int, float):
            return _BOOLEANS[value.lower()] if hint is bool else int(value) if hint is int else float(value)
    except (ValueError, KeyError, OverflowError):
        pass
    else:
        if fits(value, hint):
            return value
    raise InputError(f"{where} is {shown(value)}; it must be {describe_type(hint)}")


def fits(value: object, hint: object) -> bool:
    """Whether `value` is of the type `hint` as it stands. A whole number is also a number; a truth value is neither.

    >>> fits(1, float), fits(True, int), fits("a", Literal["a", "b"]), fits(None, int | None)
    (True, False, True, True)
    """
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in options
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in options)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    kind = origin or hint
    assert isinstance(kind, type), hint
    return isinstance(value, kind)


def choices(hint: object) -> tuple[str, ...]:
    """The values that a Literal, or an optional one, allows; of other types none.

    >>> choices(Literal["a", "b"] | None), choices(str)
    (('a', 'b'), ())
    """
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(choice for option in typing.get_args(hint) for choice in choices(option))


def describe_type(hint: object) -> str:
    """A type in words: `a whole number`, `a string or a Fleet`."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, options))
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in options)
    if origin is Callable:
        return "a function"
    kind = origin or hint
    assert isinstance(kind, type), hint
    return _WORDS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def describe(cls: type, *, but: Iterable[str] = ()) -> dict[str, str]:
    """The parameters of a dataclass with their defaults, for people to read; `but` names fields to leave out."""
    fields = _fields(cls, but=but)
    return {name: "required" if _required(field) else str(field.default) for name, field in fields.items()}


def values_of(thing: object) -> dict[str, object]:
    """What an instance of a dataclass was made from, by field.

    >>> from ownpace.core.learning.schedule import Schedule
    >>> values_of(Schedule(shape="step"))
    {'shape': 'step', 'warmup_samples': 0, 'milestones': (0.5, 0.75), 'gamma': 0.1}
    """
    return {name: getattr(thing, name) for name in _fields(thing)}


def _fields(dataclass: object, *, but: Iterable[str] = ()) -> dict[str, dataclasses.Field[object]]:
    """The fields that a dataclass, or an instance of one, is made from."""
    assert dataclasses.is_dataclass(dataclass)
    left_out = set(but)
    return {f.name: f for f in dataclasses.fields(dataclass) if f.init and f.name not in left_out}


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def positive(**values: float | None) -> None:
    """Check that each named value, if given, is a finite number above zero."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} is {shown(value)}; it must be a finite number above 0")
    at_most(LARGEST, **values)


def not_negative(**values: float | None) -> None:
    """Check that each named value, if given, is a finite number of at least zero."""
    for name, value in values.items():
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name} is {shown(value)}; it must be a finite number of at least 0")
    at_most(LARGEST, **values)


def at_most(largest: float, **values: float | None) -> None:
    """Check that no named value is larger."""
    for name, value in values.items():
        if value is not None and value > largest:
            raise InputError(f"{name} is {shown(value)}; it must be at most {largest:,}")
