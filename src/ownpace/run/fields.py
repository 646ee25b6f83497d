"""The fields of a run's description: their types, their help, and whether a value fits.

The command line needs types and help without the classes that only Python can hand over, as those need torch.
"""

from __future__ import annotations

from functools import cache
from typing import get_type_hints

from ownpace.core.contract.errors import InputError, shown, unknown
from ownpace.core.settings import choices, describe_type, fits
from ownpace.run.help import Help


class _NotOnTheCommandLine:
    """Stands for a type whose things only Python can give."""


_OPTIONS = {"Build": _NotOnTheCommandLine, "Task": _NotOnTheCommandLine}


def types_of(cls: type) -> dict[str, object]:
    """The type of each field of `Config`, or of a class derived from it, without its help."""
    from ownpace.core.learning.optimizer import Build
    from ownpace.core.learning.task import Task

    return get_type_hints(cls, localns={"Build": Build, "Task": Task})


def option_types_of(cls: type) -> dict[str, object]:
    """The same as far as the command line can give it."""
    return get_type_hints(cls, localns=_OPTIONS)


@cache
def helps_of(cls: type) -> dict[str, Help]:
    """The help of each field."""
    hints = get_type_hints(cls, localns=_OPTIONS, include_extras=True)
    return {name: about for name, hint in hints.items() for about in hint.__metadata__ if isinstance(about, Help)}


def check_type(name: str, value: object, hint: object) -> None:
    """Check that a field's value is of its type.

    Raises:
        InputError: It is not; the error says what is allowed.
    """
    if fits(value, hint):
        return
    if isinstance(value, type):
        raise InputError(f"{name} is the class {value.__name__}; give an instance: {name}={value.__name__}(…)")
    known = choices(hint)
    if known and isinstance(value, str):
        raise unknown(name, value, known)
    example = ', as in fleet="4,2,1,1"' if name == "fleet" else ""
    raise InputError(f"{name} is {shown(value)}; it must be {describe_type(hint)}{example}")
