"""From names to algorithms, tasks and optimizers, and back: a file holds names, a Python program may hold the things.

A name is one of a registry (`sync`), or says where a class is, or a function that makes such a thing: in a file
(`my.py:Patient`) or in a module (`mymodule:Patient`). Whoever takes names takes them here: `algorithm_of`, `task_of`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any, TypeGuard, TypeVar

from ownpace.algorithms import make_algorithm
from ownpace.core import own_code
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.optimizer import Build
from ownpace.core.learning.task import Task
from ownpace.core.settings import build, values_of
from ownpace.run import own
from ownpace.run.saved import label
from ownpace.tasks import build_task, make_task

T = TypeVar("T")


class CannotBeNamedError(Exception):
    """No file can say how to make this thing again; the message says why."""


def algorithm_of(given: str | Algorithm, parameters: Mapping[str, object]) -> Algorithm:
    """The algorithm that is meant."""
    if isinstance(given, Algorithm):
        return _as_given(given, "algorithm", parameters=parameters)
    if not _is_own(given, "algorithm", Algorithm):
        return make_algorithm(given, parameters)
    made: object
    found = own.find(given, "algorithm", Algorithm)
    if _is_made_from_fields(found, Algorithm):
        made = own.raising(given, lambda: build(found, parameters, where=f"the parameters of {label(given)}"))
    else:
        made = own.make(given, found, Algorithm, "algorithm", parameters)
    assert isinstance(made, Algorithm)
    return made


def task_of(given: str | Task, model: str | None, parameters: Mapping[str, object]) -> Task:
    """The task that is meant."""
    if isinstance(given, Task):
        return _as_given(given, "task", task_parameters=parameters, model=model)
    if not _is_own(given, "task", Task):
        return make_task(given, model, parameters)
    found = own.find(given, "task", Task)
    if _is_made_from_fields(found, Task):
        return own.raising(given, lambda: build_task(found, label(given), model, parameters))
    if model is not None:
        raise InputError(f"model is '{model}', but the task {label(given)} has only one; leave it out")
    made = own.make(given, found, Task, "task", parameters)
    assert isinstance(made, Task)
    return made


def optimizer_of(given: str | Build) -> str | Build:
    """The optimizer that is meant: a name of ours, or a function that makes one."""
    if not isinstance(given, str) or ":" not in given:
        return given
    found = own.find(given, "optimizer")
    if not callable(found):
        raise InputError(f"optimizer '{given}' is {found!r}; it must be a function that makes a torch optimizer")
    return found


def spelled_out(
    algorithm: str | Algorithm, made_algorithm: Algorithm, task: str | Task, made_task: Task
) -> dict[str, object]:
    """The fields of a description that say from what an algorithm and a task were made, which were given so."""
    named: dict[str, object] = {"algorithm": own_code.absolute(algorithm), "task": own_code.absolute(task)}
    if (values := _fields_of(algorithm, made_algorithm)) is not None:
        named["parameters"] = values
    if (values := _fields_of(task, made_task)) is not None:
        named["model"] = values.pop("model_name") if made_task.models else None
        named["task_parameters"] = values
    return named


def _fields_of(given: object, made: Algorithm | Task) -> dict[str, object] | None:
    """Everything that a thing was made from, if its name is that of its class; None: its fields do not say that."""
    if not isinstance(given, str) or not is_dataclass(made):
        return None
    is_class = ":" not in given or own.find(given, "it") is type(made)
    return values_of(made) if is_class else None


def _is_own(given: str, what: str, base: type) -> bool:
    """Whether a name is not one of a registry."""
    if own_code.is_file_name(file := given.removesuffix(":")):
        raise own.incomplete(given, what, file, base)
    return ":" in given


def _is_made_from_fields(found: object, base: type) -> TypeGuard[Any]:
    return isinstance(found, type) and issubclass(found, base) and is_dataclass(found) and not inspect.isabstract(found)


def name_of(thing: object) -> str:
    """`module:Name` of a class or function.

    Raises:
        CannotBeNamedError: Importing that would not give this thing.
    """
    if not isinstance(thing, type | FunctionType):
        raise CannotBeNamedError("it is neither a class nor a function")
    if thing.__module__ == "__main__":
        raise CannotBeNamedError(
            f"{thing.__name__} is defined in the script that was run; put it into a file of its own, as in my.py:Name"
        )
    if "<" in thing.__qualname__:
        raise CannotBeNamedError(f"{thing.__qualname__} is defined inside a function")
    name = f"{own_code.file_of(thing.__module__) or thing.__module__}:{thing.__qualname__}"
    try:
        # Imported to be sure: a class may have been replaced or decorated under its own name.
        found = own.find(name, "it")
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
