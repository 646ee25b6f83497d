"""`ownpace.join`, where the algorithm may be `auto`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from ownpace import drop_in
from ownpace.auto.looking import Auto
from ownpace.auto.training import AUTO
from ownpace.core.contract.errors import InputError
from ownpace.drop_in import Joined

P = ParamSpec("P")


def _with_auto(join: Callable[P, Joined]) -> Callable[P, Joined]:
    @wraps(join)
    def joined(*args: P.args, **options: P.kwargs) -> Joined:
        given = args[0] if args else options.get("algorithm")
        if given != AUTO:
            return join(*args, **options)
        if options.get("parameters"):
            raise InputError(
                f"parameters is {options['parameters']!r}, but auto chooses the algorithm itself; leave them out"
            )
        algorithm = Auto(tell=_silence if options.get("quiet") else _say)
        again: Callable[..., Joined] = join
        return again(algorithm, *args[1:], **{name: value for name, value in options.items() if name != "algorithm"})

    return joined


def _say(line: str) -> None:
    print(f"ownpace: {line}", file=sys.stderr)


def _silence(line: str) -> None:
    pass


join = _with_auto(drop_in.join)
