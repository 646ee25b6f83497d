"""Everything ownpace raises on purpose.

    OwnpaceError                 code           exit code
    ├── InputError (ValueError)  bad-input          2     something the user gave cannot be used
    ├── DivergenceError          diverged           3     the loss is no longer finite
    ├── MachineDied              machine-died       4     a machine of the fleet died and the run could not go on
    ├── Deadlock                 deadlock           5     an algorithm waits for something that cannot come
    ├── Interrupted              interrupted      130     Ctrl-C, after what there is has been written
    │
    │   of the process engine:
    ├── WireError                failed             4     what came over the wire is not a message of ours
    ├── PlaceError               failed             4     a message names shared memory that is not there
    └── NodeFailed               failed             1     a node ended with an exception that is a bug of ours

The code stands in the last record of a run's events, so that no report has to read the prose of a message. Any other
exception is a bug of ours and keeps its traceback (exit code 1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class OwnpaceError(Exception):
    """The base of all errors that ownpace raises on purpose."""

    code: ClassVar[str] = "failed"
    """How a run ended, for programs to read."""
    exit_code = 1
    told = False
    """Whether whoever speaks for the run has heard of it, so that this process need not say it again."""


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


class Deadlock(OwnpaceError):
    """Nothing is left to happen, yet somebody still waits: a fault in an algorithm."""

    code = "deadlock"
    exit_code = 5


class Interrupted(OwnpaceError):
    """The user pressed Ctrl-C."""

    code = "interrupted"
    exit_code = 130


def unknown(what: str, given: str, allowed: Iterable[str], hint: str = "") -> InputError:
    """The error for a name that nobody knows: it lists the known ones and points at the nearest.

    >>> str(unknown("algorithm", "snyc", ["async", "sync"]))
    "unknown algorithm 'snyc'; did you mean 'sync'? Known: async, sync"
    """
    known = sorted(allowed)
    near = difflib.get_close_matches(given, known, n=1)
    guess = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"unknown {what} '{given}'; {guess}Known: {', '.join(known) or 'none'}{hint and '. ' + hint}")
