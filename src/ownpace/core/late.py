"""What is imported when it is used, not before: `--help` and `--version` show names, and must not wait for torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Registry(Mapping[str, type[T]]):
    """Name → class, which is imported when it is asked for.

    >>> known = Registry[object]({"counter": "collections:Counter", "path": "pathlib:Path"})
    >>> list(known), "path" in known, known["counter"]
    (['counter', 'path'], True, <class 'collections.Counter'>)
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)

    def __getitem__(self, name: str) -> type[T]:
        module, _, attribute = self._places[name].partition(":")
        found: type[T] = getattr(importlib.import_module(module), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places  # Mapping's own way would import the class

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def late_names(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562) that imports each name, and each of its modules, when it is asked for.

    Args:
        package: Its `__name__`.
        places: The module that each name is in.
    """

    def find(name: str) -> object:
        if name in places:
            found: object = getattr(importlib.import_module(places[name]), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            found = importlib.import_module(f"{package}.{name}")  # as if the package had imported it
        else:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        setattr(sys.modules[package], name, found)  # so that this is done once
        return found

    return find
