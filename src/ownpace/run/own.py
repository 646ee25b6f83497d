"""Things of the user's own, found by name and made: a class, a function that makes one, or the thing itself."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import ModuleType, NoneType, UnionType
from typing import Literal, TypeVar

from ownpace.core.contract.errors import InputError, listed, shown, unknown
from ownpace.core.own_code import in_a_line, is_file_name, load_file
from ownpace.core.settings import convert

T = TypeVar("T")
_PLAIN = (bool, int, float, str, NoneType)


def find(name: str, what: str, base: type = object) -> object:
    """What a name stands for; `what` it is to be, and derived from which class, is for errors.

    Raises:
        InputError: There is no such file, module or thing in it.
    """
    place, _, parts = name.rpartition(":")
    module = load_file(place) if is_file_name(place) else _imported(name, place, what)
    found: object = module
    for part in parts.split("."):
        if not part or not hasattr(found, part):
            known = candidates(module, base)
            if part and known:
                raise unknown(f"{what} in {place}:", parts, known)
            raise InputError(
                f"{what} {shown(name)} cannot be imported: {place} has no {parts or 'such thing'}; write my.py:Name or "
                "module:Name"
            )
        found = getattr(found, part)
    return found


def candidates(module: ModuleType, base: type) -> list[str]:
    """The classes in a module that could be meant."""
    return [
        name
        for name, thing in vars(module).items()
        if isinstance(thing, type) and issubclass(thing, base) and thing.__module__ == module.__name__
    ]


def incomplete(name: str, what: str, file: str, base: type) -> InputError:
    """The error for a file that is named without the class in it."""
    known = candidates(load_file(file), base)
    example = known[0] if known else "Name"
    return InputError(
        f"{what} {shown(name)} is a file; say which class in it: {file}:{example}"
        + (f" (it has {listed(known)})" if len(known) > 1 else "")
    )


def make(name: str, found: object, base: type, what: str, given: Mapping[str, object]) -> object:
    """The thing that was found, or that it makes.

    Raises:
        InputError: It is no such thing and makes none, or raises, or needs other arguments.
    """
    if isinstance(found, base):
        if given:
            raise InputError(f"{what} '{name}' is made already; it takes no parameters, but {sorted(given)} are given")
        return found
    if not callable(found) or (isinstance(found, type) and not issubclass(found, base)):
        raise InputError(
            f"{what} '{name}' is {shown(found)}; it must be a class derived from {base.__name__}, or a function that "
            "makes one"
        )
    if inspect.isabstract(found):
        lacking = listed(sorted(getattr(found, "__abstractmethods__", ())))
        raise InputError(f"{what} '{name}' is a class that lacks {lacking}; write that, as {base.__name__} has it")
    made = raising(name, lambda: found(**_arguments(found, given, name)))
    if not isinstance(made, base):
        raise InputError(f"{what} '{name}' made {shown(made)}; it must make {_one(base)}")
    return made


def raising(name: str, call: Callable[[], T]) -> T:
    """What a call of the user's code returns; what that code raises becomes a line that says where."""
    try:
        return call()
    except InputError:
        raise
    except Exception as error:
        place = name.rpartition(":")[0]
        path = str(load_file(place).__file__) if is_file_name(place) else None
        raise InputError(f"{name} could not be made: {in_a_line(error, path)}; fix it") from error


def _imported(name: str, module: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    # TypeError: a name that begins with a dot. Others: whatever the module itself raises.
    except Exception as error:
        # Only what a module of the user's raises has a line worth naming.
        said = str(error) if isinstance(error, ImportError | TypeError | ValueError) else in_a_line(error)
        raise InputError(
            f"{what} {shown(name)} cannot be imported: {said}; write my.py:Name, or module:Name where Python finds "
            "the module: in this folder, or on PYTHONPATH"
        ) from None


def _one(base: type) -> str:
    return f"{'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__}"


def _arguments(function: Callable[..., object], given: Mapping[str, object], name: str) -> dict[str, object]:
    """The arguments of a call, from what may be strings."""
    try:
        known = {each.name: each for each in inspect.signature(function).parameters.values() if _is_named(each)}
    except (TypeError, ValueError):  # a class written in C, which does not say what it takes
        return dict(given)
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in inspect.signature(function).parameters.values())
    for argument in given:
        if argument not in known and not takes_any:
            raise unknown(f"parameter of {name}:", argument, known)
    lacking = [each.name for each in known.values() if each.default is Parameter.empty and each.name not in given]
    if lacking:
        raise InputError(f"{name} needs {' and '.join(lacking)}; give {lacking[0]}=… as a parameter")
    hints = _hints(function)
    return {
        argument: _value(value, hints.get(argument), known.get(argument), f"{argument} of {name}")
        for argument, value in given.items()
    }


def _is_named(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _hints(function: Callable[..., object]) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(
            vars(function).get("__init__", function) if isinstance(function, type) else function
        )
    except Exception:  # an annotation that cannot be resolved says nothing
        return {}


def _value(value: object, hint: object, parameter: Parameter | None, where: str) -> object:
    """The value as its annotation says; without one, as its default is; else what it looks like."""
    if hint is not None:
        return convert(value, hint, where) if _is_plain(hint) else value
    default = None if parameter is None or parameter.default is Parameter.empty else parameter.default
    if type(default) in (bool, int, float, str):
        return convert(value, type(default), where)
    return _looks_like(value) if isinstance(value, str) else value


def _is_plain(hint: object) -> bool:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType, tuple):
        return all(option is Ellipsis or _is_plain(option) for option in options)
    return origin is Literal or hint in _PLAIN


def _looks_like(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
