"""What can be trained, and the registry: the one place where a task's name becomes a class.

images          images of one small shape: digits, MNIST, Fashion-MNIST, CIFAR; byte_images: kept as bytes
image_folder    images of any size, in folders named after their classes; decoded in processes of their own
                (image_loaders), each of which runs decode_images
convex          linear models on LIBSVM files, and a noisy quadratic
models          the models that tasks offer; resnets: those for large images
files           data files: where they are, and downloads
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.late import Registry, late_names
from ownpace.core.settings import build, describe

if TYPE_CHECKING:
    from ownpace.core.learning.task import Task
    from ownpace.tasks.convex import Quadratic, Svmlight
    from ownpace.tasks.image_folder import Images
    from ownpace.tasks.images import Cifar10, Cifar100, Digits, FashionMnist, Mnist

_PLACES = {
    "digits": "ownpace.tasks.images:Digits",
    "mnist": "ownpace.tasks.images:Mnist",
    "fashion-mnist": "ownpace.tasks.images:FashionMnist",
    "cifar10": "ownpace.tasks.images:Cifar10",
    "cifar100": "ownpace.tasks.images:Cifar100",
    "images": "ownpace.tasks.image_folder:Images",
    "svmlight": "ownpace.tasks.convex:Svmlight",
    "quadratic": "ownpace.tasks.convex:Quadratic",
}
TASKS: Registry[Task] = Registry(_PLACES)
if not TYPE_CHECKING:  # a type checker sees the imports above, and would allow any name
    __getattr__ = late_names(__name__, {cls: module for module, _, cls in (p.partition(":") for p in _PLACES.values())})


def models_of(name: str) -> tuple[str, ...]:
    """The models a task offers, its default first."""
    return TASKS[name].models


def make_task(name: str, model: str | None = None, parameters: Mapping[str, object] | None = None) -> Task:
    """The task of that name, with one of its models and these parameters, which may be strings.

    Asked for the same again, it hands out the same: tasks never change, and their data need to be read only once.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS, "`ownpace list` describes them; your own is my.py:Class")
    return build_task(TASKS[name], name, model, parameters or {})


def build_task(cls: type[Task], name: str, model: str | None, parameters: Mapping[str, object]) -> Task:
    """The task of that class, which errors call `name`."""
    if "model_name" in parameters and cls.models:
        raise InputError("model_name is not a task parameter; name the model with --model")
    if model is not None and not cls.models:
        raise InputError(f"model is '{model}', but the task {name} has only one; leave it out")
    if model is not None and model not in cls.models:
        raise unknown(f"model for {name}", model, cls.models)
    chosen = model or next(iter(cls.models), None)
    given = tuple(sorted(parameters.items()))
    try:
        # Through a cache: a comparison makes the same task for every run, and reading its data takes long.
        return _make(cls, name, chosen, given)
    except TypeError:  # a list from a file, say: it cannot be hashed
        return _make.__wrapped__(cls, name, chosen, given)


@lru_cache(maxsize=2)
def _make(cls: type[Task], name: str, model: str | None, parameters: tuple[tuple[str, object], ...]) -> Task:
    fixed = {} if model is None else {"model_name": model}
    return build(cls, dict(parameters), where=f"the parameters of {name} (-t)", fixed=fixed)


def parameters_of(cls: type[Task]) -> dict[str, str]:
    """The parameters of a task with their defaults, for people to read."""
    return describe(cls, but=("model_name",) if cls.models else ())


__all__ = [
    "TASKS",
    "Cifar10",
    "Cifar100",
    "Digits",
    "FashionMnist",
    "Images",
    "Mnist",
    "Quadratic",
    "Svmlight",
    "build_task",
    "make_task",
    "models_of",
    "parameters_of",
]
