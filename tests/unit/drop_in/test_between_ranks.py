"""What ranks send each other comes back as it was, and is reduced part by part."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import ownpace
from ownpace.core.contract.errors import WireError
from ownpace.drop_in.between_ranks import BetweenRanks
from ownpace.drop_in.packing import Packed, unpack
from ownpace.drop_in.reducing import combined


def there_and_back(value: Any) -> Any:
    packed = Packed()
    return unpack(packed.text(value), packed.devices)


@pytest.mark.parametrize(
    "value", [3, 2.5, "text", True, None, [1, ["a"]], {"tensor": {"list": 1}, "dict": []}, math.inf]
)
def test_plain_values_come_back_as_they_were(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_come_back_as_they_were(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    turned = tensor.T if tensor.ndim == 2 else tensor
    back = there_and_back({"a": [tensor, turned]})
    assert torch.equal(back["a"][0], tensor)
    assert back["a"][0].dtype == dtype
    assert torch.equal(back["a"][1], turned)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(ownpace.InputError, match="a set cannot be sent to other ranks; give numbers"):
        there_and_back({"a": {1, 2}})
    with pytest.raises(ownpace.InputError, match=r"the keys \[1\] cannot be sent"):
        there_and_back({1: 2})


@pytest.mark.parametrize(("op", "number"), [("mean", 2.0), ("sum", 4), ("max", 3), ("min", 1)])
def test_every_part_is_reduced(op, number):
    values = [{"n": n, "list": [torch.tensor([n, 4 - n])]} for n in (1, 3)]
    reduced = combined(values, op)
    assert reduced["n"] == number
    assert type(reduced["n"]) is type(number)
    assert reduced["list"][0].tolist() == [number, number]


def test_what_is_not_a_number_is_not_lost():
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        for op in ("mean", "sum", "max", "min"):
            assert math.isnan(combined(values, op))
    assert math.isnan(combined([math.inf, -math.inf], "sum"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([torch.ones(2), torch.ones(3)], r"torch.float32 \(3,\) on rank 1, and torch.float32 \(2,\) on rank 0"),
        ([{"a": 1}, {"b": 1}], r"given \['b'\] on rank 1, and \['a'\]"),
        ([1, [1]], "given list on rank 1, and a number"),
        ([[1], [1, 2]], "given 2 on rank 1"),
    ],
)
def test_ranks_that_give_different_things_are_named(values, words):
    with pytest.raises(ownpace.InputError, match=words):
        combined(values, "sum")


def test_alone_it_is_the_same():
    with ownpace.join() as fleet:
        assert fleet.is_main
        fleet.barrier()
        tensor = torch.ones(2)
        gathered = fleet.gather({"loss": 1.5, "tensor": tensor})
        assert gathered[0]["loss"] == 1.5
        assert gathered[0]["tensor"] is not tensor
        assert fleet.reduce(3) == 3.0
        assert fleet.reduce(tensor, op="sum").tolist() == [1.0, 1.0]
        with pytest.raises(ownpace.InputError, match="unknown op 'median'"):
            fleet.reduce(1, op="median")  # type: ignore[arg-type]  # the point
        with pytest.raises(ownpace.InputError, match=r"fleet\.reduce was given a str"):
            fleet.reduce({"a": "b"})
    with pytest.raises(ownpace.InputError, match=r"fleet\.barrier was called outside of `with"):
        fleet.barrier()


def test_only_the_first_rank_prints(capsys):
    with ownpace.join() as fleet:
        fleet.print("here", 1, sep="-")
    assert capsys.readouterr().out == "here-1\n"


@given(st.text() | st.binary())
@example("null")
@example('{"value": 1}')
@example('{"value": 1, "tensors": "AAAA"}')
@example('{"value": {"tensor": "7"}, "tensors": ""}')
@example("[" * 100_000)
def test_what_is_no_value_is_refused(text):
    with pytest.raises(WireError, match=r"^a rank sent a value that is none \(.{1,120}\)$"):
        unpack(text, {})


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_value_that_was_damaged_is_refused_or_a_value(place, byte):
    text = bytearray(Packed().text({"a": [torch.ones(2), 1.5, "b", None]}).encode())
    text[place % len(text)] = byte
    with contextlib.suppress(WireError):
        unpack(bytes(text), {})


class SlowStore:
    """Takes in what another rank wrote only when it is read: torch's store does not answer that it has."""

    def __init__(self, others):
        self.values, self.others = {}, others

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key] if key in self.values else self.others[key]


def test_a_value_that_the_store_has_not_taken_in_yet_is_waited_for():
    place = SimpleNamespace(number=4, is_behind=False, there=[0, 1])
    presence = SimpleNamespace(place=place, together=lambda what: None)
    store = SlowStore({"call/5/1": Packed().text("late")})
    run: Any = SimpleNamespace(rank=0, world_size=2, presence=presence, store=store, has_met=True, is_over=False)
    run.is_open = False
    assert BetweenRanks(run).gather("mine") == ["mine", "late"]
    place.is_behind = True  # this rank was started again: whatever is not there is not kept any more
    place.number = 9
    with pytest.raises(ownpace.InputError, match="not kept any more"):
        BetweenRanks(run).gather("mine")
