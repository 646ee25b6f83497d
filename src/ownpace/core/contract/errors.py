"""Everything ownpace raises on purpose.

    OwnpaceError                        code            exit code
    ├── InputError      (ValueError)    bad-input          2     something the user gave cannot be used
    ├── DivergenceError                 diverged           3     the loss is no longer finite
    ├── MachineDied                     machine-died       4     a machine of the fleet died, and the run ended with it
    │   └── PeerLost                    peer-lost          4     … which another node notices: never the cause itself
    ├── WireError                       bad-message        4     what came over the wire is not a message of ours
    ├── SharedMemoryError               bad-memory         4     a message points to memory that is not there
    ├── NodeFailed                      node-failed        1     a node's code raised what was not expected
    ├── ReplicasDiffer                  replicas-differ    1     workers' parameters differ that must be equal
    ├── Deadlock                        deadlock           5     an algorithm waits for something that cannot happen
    ├── NotWritten                      not-written        6     the run went on, but not all of it could be written
    └── Interrupted                     interrupted      130     Ctrl-C; everything up to then has been written

Any other exception is a bug of ours and keeps its traceback (exit code 1); where the command line was given a task or
an algorithm in a file, it is taken for a mistake in that, and ends in a line, too. Errors travel between processes by
their code, which is also in the last record of a run's events: what is decided because of an error is decided by its
class or code, never by its text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class OwnpaceError(Exception):
    """The base of all errors that ownpace raises on purpose."""

    code: ClassVar[str] = "failed"
    """How a run ended, for programs to read."""
    exit_code: ClassVar[int] = 1
    is_consequence: ClassVar[bool] = False
    """Whether it only follows from the failure of another node, which has a better explanation."""
    blame = ""
    """The node that failed, where that is known."""
    result: object | None = None
    """What had come out by then, where `ownpace.train` or `compare` raised it: a `Result`, which has the model."""
    told = False
    """Whether the main process has heard of it, so that this one need not report it again."""


class InputError(OwnpaceError, ValueError):
    """What was given cannot be used. The message says what was given, what is allowed and what to do next."""

    code = "bad-input"
    exit_code = 2


class DivergenceError(OwnpaceError):
    """The loss became infinite or not a number."""

    code = "diverged"
    exit_code = 3


class MachineDied(OwnpaceError):
    """A machine died, and the run could not go on without it."""

    code = "machine-died"
    exit_code = 4


class PeerLost(MachineDied):
    """Another node is gone or has given up."""

    code = "peer-lost"
    is_consequence = True


class WireError(OwnpaceError):
    """What came over the wire is not a message of ours; most likely its sender died while writing."""

    code = "bad-message"
    exit_code = 4
    is_consequence = True


class SharedMemoryError(OwnpaceError):
    """What was sent does not lead to memory that two processes share; most likely its sender is gone."""

    code = "bad-memory"
    exit_code = 4
    is_consequence = True


class NodeFailed(OwnpaceError):
    """The code of a node raised what was not expected; its traceback was printed where it runs."""

    code = "node-failed"


class ReplicasDiffer(OwnpaceError):
    """The workers' parameters differ, though the algorithm promises equal ones after the same updates."""

    code = "replicas-differ"


class Deadlock(OwnpaceError):
    """Nothing is left to happen, yet a node still waits: a fault in an algorithm."""

    code = "deadlock"
    exit_code = 5


class NotWritten(OwnpaceError):
    """The disk is full, or cannot be written: something of the run is missing in its folder."""

    code = "not-written"
    exit_code = 6


class Interrupted(OwnpaceError):
    """The user pressed Ctrl-C."""

    code = "interrupted"
    exit_code = 130


_ALL: tuple[type[OwnpaceError], ...] = (
    OwnpaceError,
    InputError,
    DivergenceError,
    MachineDied,
    PeerLost,
    WireError,
    SharedMemoryError,
    NodeFailed,
    ReplicasDiffer,
    Deadlock,
    NotWritten,
    Interrupted,
)
BY_CODE: dict[str, type[OwnpaceError]] = {kind.code: kind for kind in _ALL}
"""Every error by its code, as it travels between processes."""


def shown(value: object, most: int = 100) -> str:
    """A value in an error, which stays one readable line whatever was given.

    >>> shown("a" * 1000, 12), shown(3)
    ("'aaaaaaaaaa…", '3')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not write out whole numbers of thousands of digits
        text = f"a {type(value).__name__} that is too long to be shown"
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(names: Iterable[str], most: int = 30) -> str:
    """Names in an error: the first ones, if there are many."""
    known = list(names)
    more = f" … ({len(known)} in all)" if len(known) > most else ""
    return ", ".join(name if len(name) <= 100 else name[:99] + "…" for name in known[:most]) + more


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Some ranks, by their numbers.

    >>> ranks_in_words([2]), ranks_in_words({2, 0})
    ('rank 2', 'ranks 0, 2')
    """
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def unknown(what: str, given: str, allowed: Iterable[str], hint: str = "") -> InputError:
    """The error for a name that is not known: it lists the known ones and points at the nearest.

    >>> str(unknown("algorithm", "snyc", ["async", "sync"]))
    "unknown algorithm 'snyc'; did you mean 'sync'? Known: async, sync"
    """
    known = sorted(allowed)
    near = difflib.get_close_matches(given[:100], known, n=1)
    guess = f"did you mean '{near[0]}'? Known" if near else "known"
    return InputError(f"unknown {what} {shown(given)}; {guess}: {listed(known) or 'none'}{hint and '. ' + hint}")
