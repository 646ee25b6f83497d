"""Frozen dataclasses out of what users write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.core.settings import build, describe, not_negative, positive


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
        ({}, "number is missing in here"),
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


examples = st.builds(
    Example,
    number=st.integers(),
    share=st.floats(allow_nan=False),
    on=st.booleans(),
    kind=st.sampled_from(["a", "b"]),
    most=st.none() | st.integers(),
)


@given(examples)
def test_what_was_written_out_can_be_read_again(example):
    written = {name: str(value).lower() for name, value in vars(example).items()}
    assert build(Example, written, where="here") == example


def test_an_error_of_the_class_itself_says_where_it_was():
    @dataclass(frozen=True)
    class Picky:
        number: int

        def __post_init__(self):
            positive(number=self.number)

    with pytest.raises(InputError, match=r"^\[picky\]: number is -1; it must be a finite number above 0$"):
        build(Picky, {"number": "-1"}, where="[picky]")


def test_defaults_are_described():
    assert describe(Example) == {"number": "required", "share": "0.5", "on": "False", "kind": "a", "most": "None"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-9])
def test_numbers_that_cannot_be_meant_are_refused(value):
    with pytest.raises(InputError, match=r"size is .* of at least 0"):
        not_negative(size=value)
    with pytest.raises(InputError, match=r"size is .* above 0"):
        positive(size=value)


def test_zero_is_not_negative_but_not_positive_either():
    not_negative(size=0, other=None)
    positive(other=None)
    with pytest.raises(InputError):
        positive(size=0)
