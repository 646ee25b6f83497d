"""Frozen dataclasses out of what users write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.core.settings import build


@dataclass(frozen=True)
class Example:
    number: int
    share: float = 0.5
    on: bool = False
    kind: Literal["a", "b"] = "a"
    most: int | None = None


def test_build_takes_strings_and_values():
    built = build(Example, {"number": "3", "share": 1, "on": "yes", "kind": "b", "most": "7"}, where="here")
    assert built == Example(3, 1.0, True, "b", 7)
    assert build(Example, {"number": 3, "most": "none"}, where="here").most is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nmber": 1}, "unknown key in here: 'nmber'; did you mean 'number'?"),
        ({}, "here lacks number"),
        ({"number": "x"}, "number in here is 'x'; it must be a whole number"),
        ({"number": 1.5}, "it must be a whole number"),
        ({"number": True}, "it must be a whole number"),
        ({"number": 1, "kind": "c"}, "kind in here is 'c'; allowed: a, b"),
        ({"number": 1, "on": "maybe"}, "it must be true or false"),
    ],
)
def test_build_refuses(given, message):
    with pytest.raises(InputError) as caught:
        build(Example, given, where="here")
    assert message in str(caught.value)
