"""`ownpace.join`, where the algorithm may be `auto`, or one of the user's own in a file: `my.py:Patient`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, cast

from ownpace import drop_in
from ownpace.algorithms import DEFAULT
from ownpace.auto.looking import Auto
from ownpace.auto.training import AUTO
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.drop_in import Joined
from ownpace.run.fields import check_type
from ownpace.run.names import algorithm_of

P = ParamSpec("P")


def _with_auto(join: Callable[P, Joined]) -> Callable[P, Joined]:
    @wraps(join)
    def joined(*args: P.args, **options: P.kwargs) -> Joined:
        given = args[0] if args else options.get("algorithm", DEFAULT)
        again: Callable[..., Joined] = join
        rest = {name: value for name, value in options.items() if name != "algorithm"}
        if given != AUTO:
            check_type("algorithm", given, str | Algorithm)
            parameters = cast("Mapping[str, object] | None", rest.pop("parameters", None))
            made = algorithm_of(cast("str | Algorithm", given), parameters or {})
            return again(made, *args[1:], **rest)
        if options.get("parameters"):
            raise InputError(
                f"parameters is {options['parameters']!r}, but auto chooses the algorithm itself; leave them out"
            )
        algorithm = Auto(tell=_silence if options.get("quiet") else _say)
        return again(algorithm, *args[1:], **rest)

    return joined


def _say(line: str) -> None:
    print(f"ownpace: {line}", file=sys.stderr)


def _silence(line: str) -> None:
    pass


join = _with_auto(drop_in.join)
