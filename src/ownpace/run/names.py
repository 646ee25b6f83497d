"""From names to algorithms, tasks and optimizers, and back: a file holds names, a Python program may hold the things.

A name is one of a registry (`sync`) or says where to import from (`mymodule:Patient`).
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import FunctionType
from typing import TypeVar

from ownpace.algorithms import make_algorithm
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, shown
from ownpace.core.learning.optimizer import Build
from ownpace.core.learning.task import Task
from ownpace.core.settings import build, values_of
from ownpace.tasks import build_task, make_task

T = TypeVar("T")


class CannotBeNamedError(Exception):
    """No file can say how to make this thing again; the message says why."""


def algorithm_of(given: str | Algorithm, parameters: Mapping[str, object]) -> Algorithm:
    """The algorithm that is meant."""
    if isinstance(given, Algorithm):
        return _as_given(given, "algorithm", parameters=parameters)
    if ":" not in given:
        return make_algorithm(given, parameters)
    cls = _find_class(given, Algorithm, "algorithm")
    assert issubclass(cls, Algorithm)
    if _takes_nothing(cls, parameters):
        return cls()
    return build(cls, parameters, where=f"the parameters of {label(given)}")


def task_of(given: str | Task, model: str | None, parameters: Mapping[str, object]) -> Task:
    """The task that is meant."""
    if isinstance(given, Task):
        return _as_given(given, "task", task_parameters=parameters, model=model)
    if ":" not in given:
        return make_task(given, model, parameters)
    cls = _find_class(given, Task, "task")
    assert issubclass(cls, Task)
    if _takes_nothing(cls, parameters):
        return cls()
    return build_task(cls, label(given), model, parameters)


def optimizer_of(given: str | Build) -> str | Build:
    """The optimizer that is meant: a name of ours, or a function that makes one."""
    if not isinstance(given, str) or ":" not in given:
        return given
    found = _find(given, "optimizer")
    if not callable(found):
        raise InputError(f"optimizer '{given}' is {found!r}; it must be a function that makes a torch optimizer")
    return found


def label(thing: object) -> str:
    """What to call a thing, or the thing of that name, in records and folders.

    >>> label("sync"), label("mymodule:Outer.Patient")
    ('sync', 'Patient')
    """
    return thing.replace(":", ".").rsplit(".", 1)[-1] if isinstance(thing, str) else type(thing).__name__


def name_of(thing: object) -> str:
    """`module:Name` of a class or function.

    Raises:
        CannotBeNamedError: Importing that would not give this thing.
    """
    if not isinstance(thing, type | FunctionType):
        raise CannotBeNamedError("it is neither a class nor a function")
    if thing.__module__ == "__main__":
        raise CannotBeNamedError(f"{thing.__name__} is defined in the script that was run, not in a module")
    if "<" in thing.__qualname__:
        raise CannotBeNamedError(f"{thing.__qualname__} is defined inside a function")
    name = f"{thing.__module__}:{thing.__qualname__}"
    try:
        # Imported to be sure: a class may have been replaced or decorated under its own name.
        found = _find(name, "it")
    except InputError as error:
        raise CannotBeNamedError(str(error)) from None
    if found is not thing:
        raise CannotBeNamedError(f"{name} is something else")
    return name


def recipe_of(thing: Algorithm | Task) -> tuple[str, dict[str, object]]:
    """The name of a thing's class, and what the thing was made from.

    Raises:
        CannotBeNamedError: The thing cannot be made again from these.
    """
    name = name_of(type(thing))
    if not is_dataclass(thing):
        if type(thing).__init__ is not object.__init__:
            raise CannotBeNamedError(f"{label(thing)} is not a dataclass, so its arguments are not known")
        return name, {}
    values = values_of(thing)
    try:
        # Through JSON and back, as a later run would do it: a tuple comes back as a list.
        again = build(type(thing), json.loads(json.dumps(values, allow_nan=False)), where=label(thing))
    except (TypeError, ValueError) as error:  # InputError is one, too
        raise CannotBeNamedError(f"its fields do not survive a file: {error}") from None
    if values_of(again) != values:
        raise CannotBeNamedError(f"its fields do not survive a file: {again!r}")
    return name, values


def _as_given(thing: T, what: str, **more: object) -> T:
    """The thing itself, for which nothing else may be given: all of it was said where it was made."""
    for name, value in more.items():
        if value:
            raise InputError(
                f"{name} is {value!r}, but the {what} is an object that is already made; give them to {label(thing)}(…)"
            )
    return thing


def _takes_nothing(cls: type, parameters: Mapping[str, object]) -> bool:
    """Whether a class is made without arguments, because it is not a dataclass."""
    if is_dataclass(cls):
        return False
    if parameters:
        raise InputError(
            f"{cls.__name__} is not a dataclass and takes no parameters, but {sorted(parameters)} are given"
        )
    return True


def _find_class(path: str, base: type, what: str) -> type:
    found = _find(path, what)
    if not (isinstance(found, type) and issubclass(found, base)) or inspect.isabstract(found):
        raise InputError(f"{what} '{path}' is {found!r}; it must be a class derived from {base.__name__}")
    return found


def _find(path: str, what: str) -> object:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # TypeError: a name that begins with a dot
        raise InputError(
            f"{what} {shown(path)} cannot be imported: {error}; write module:Name, "
            "and run it in the module's folder or set PYTHONPATH"
        ) from None
    return found
