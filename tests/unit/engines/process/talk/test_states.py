"""Whole states in messages: what is sent comes, and what does not fit together is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ownpace.core.contract.errors import WireError
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.talk.regrouping import StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, packets
from ownpace.engines.process.talk.wire import Packet

STATE: dict[str, Any] = {
    "values": torch.arange(10.0),
    "random": torch.arange(50, dtype=torch.uint8),
    "odd": torch.arange(6, dtype=torch.int16).reshape(2, 3),
    "empty": torch.empty(3, 0),
    "rest": [1, 2.5, None, {"a": "b"}],
}


def assembled(sent: list[Packet]) -> PlainState | None:
    assembly = StateAssembly()
    state = None
    for packet in sent:
        if isinstance(packet.control, StateOutline):
            state = assembly.begin(packet.control)
        else:
            assert isinstance(packet.control, StateTensor)
            state = assembly.take(packet.control, packet.body)
    return state


@pytest.mark.parametrize("most_values", [1, 4, 1000])
def test_a_state_comes_as_it_was_in_pieces_that_fit(most_values):
    sent = list(packets(STATE, 3, most_values))
    assert all(not isinstance(packet.body, torch.Tensor) or len(packet.body) <= most_values for packet in sent)
    came: Any = assembled(sent)
    for name, value in STATE.items():
        if isinstance(value, torch.Tensor):
            assert came[name].dtype == value.dtype
            assert torch.equal(came[name], value)
    assert came["rest"] == STATE["rest"]
    assert assembled(list(packets({}, 3, 1))) == {}


FLOATS = StateTensor("float32", [2], True)


@pytest.mark.parametrize(
    ("names", "control", "body", "words"),
    [
        (None, FLOATS, torch.ones(2), "not announced"),
        (["a"], FLOATS, None, "not announced"),
        (["a"], FLOATS, torch.ones(3), "than its shape"),
        (["a"], FLOATS, torch.ones(1), "not of the shape"),
        (["a"], StateTensor("float32", [2**62, 2**62], True), torch.ones(1), "not of the shape"),
        (["a"], StateTensor("nn", [2], True), torch.ones(2), "unknown type 'nn'"),
        (["a"], StateTensor("x" * 10**5, [2], True), torch.ones(2), "unknown type 'x"),
        (["a"], FLOATS, torch.ones(2), "a state that has no names"),
    ],
)
def test_pieces_that_fit_nowhere_are_refused(names, control, body, words):
    assembly = StateAssembly()
    if names is not None:
        assert assembly.begin(StateOutline(3, "5", names)) is None
    with pytest.raises(WireError, match=words) as refused:
        assembly.take(control, body)
    assert len(str(refused.value)) < 400


def test_no_more_is_kept_than_was_announced():
    assembly, more = StateAssembly(), StateTensor("float32", [2], False)
    assembly.begin(StateOutline(3, "{}", ["a"]))
    assert assembly.take(more, torch.ones(2)) is None
    with pytest.raises(WireError, match="more pieces of a tensor than its shape"):
        assembly.take(more, torch.ones(1))


@pytest.mark.parametrize("text", ["", "[", "[]", "5", "null", "[" * 10**5, str(math.nan), '{"a": {"tensor": "b"}}'])
def test_an_outline_that_is_none_is_refused(text):
    with pytest.raises(WireError, match=r"^a state .{1,120}$"):
        StateAssembly().begin(StateOutline(3, text, []))
