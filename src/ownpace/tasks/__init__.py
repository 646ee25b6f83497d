"""What can be trained, and the registry: the one place where a task's name becomes a class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.learning.task import Task
from ownpace.core.settings import build
from ownpace.tasks.convex import Quadratic, Svmlight
from ownpace.tasks.images import Cifar10, Digits, FashionMnist, Mnist

TASKS: dict[str, type[Task]] = {
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "svmlight": Svmlight,
    "quadratic": Quadratic,
}


def models_of(name: str) -> tuple[str, ...]:
    """The models a task offers, its default first."""
    models: tuple[str, ...] = TASKS[name].models  # type: ignore[attr-defined]
    return models


def make_task(name: str, model: str | None = None, parameters: Mapping[str, object] | None = None) -> Task:
    """The task of that name, with one of its models and these parameters, which may be strings.

    Asked for the same again, it hands out the same: tasks never change, and their data need to be read only once.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS, "`ownpace list` describes them")
    model = models_of(name)[0] if model is None else model
    if model not in models_of(name):
        raise unknown(f"model for {name}", model, models_of(name))
    if parameters and "model_name" in parameters:
        raise InputError("model_name is not a task parameter; name the model with --model")
    return _make(name, model, tuple(sorted((parameters or {}).items())))


@lru_cache(maxsize=2)
def _make(name: str, model: str, parameters: tuple[tuple[str, object], ...]) -> Task:
    return build(TASKS[name], {**dict(parameters), "model_name": model}, where=f"the parameters of {name}")


__all__ = ["TASKS", "Cifar10", "Digits", "FashionMnist", "Mnist", "Quadratic", "Svmlight", "make_task", "models_of"]
