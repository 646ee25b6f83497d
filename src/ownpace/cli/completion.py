"""What the shell offers for a half-typed value: names of algorithms, tasks, fleets and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ownpace.algorithms import ALGORITHMS
from ownpace.core.choices import OPTIMIZERS
from ownpace.fleet import PRESETS
from ownpace.tasks import TASKS

Completer = Callable[[str], list[str]]
KNOWN: dict[str, Iterable[str]] = {"algorithm": ALGORITHMS, "task": TASKS, "fleet": PRESETS, "optimizer": OPTIMIZERS}
"""By field of `Config`."""


def one_of(names: Iterable[str]) -> Completer:
    """Completes one name.

    >>> one_of(["sync", "stale", "pace"])("s")
    ['sync', 'stale']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def several_of(names: Iterable[str]) -> Completer:
    """Completes the last of several names with commas between.

    >>> several_of(["sync", "stale", "pace"])("sync,s")
    ['sync,stale']
    """

    def complete(incomplete: str) -> list[str]:
        earlier, comma, last = incomplete.rpartition(",")
        taken = earlier.split(",")
        return [f"{earlier}{comma}{name}" for name in names if name.startswith(last) and name not in taken]

    return complete
