"""Whole states on their way: they come back as they were, in pieces that any receiver takes."""

from __future__ import annotations

import json

import pytest
import torch

from ownpace.core.contract.errors import WireError
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.talk.control_record import from_record, to_record
from ownpace.engines.process.talk.regrouping import StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, packets

SHARED = torch.arange(6.0)
STATE: PlainState = {
    "values": torch.randn(7),
    "optimizer": {"0": [{"step": torch.tensor(3.0), "exp_avg": torch.randn(2, 3)}, {}]},
    "random": [torch.get_rng_state()],
    "mask": torch.tensor([True, False]),
    "small": torch.arange(3, dtype=torch.int8),
    "empty": torch.empty(0, 2),
    "slice of one": torch.arange(4, dtype=torch.int8)[3::11],
    "twice": [SHARED, SHARED],
    "counts": {"samples": 96, "ahead": 0.5, "used": (1, 2)},
    "nothing": None,
}


def sent(state: PlainState, most_values: int) -> PlainState | None:
    """What arrives of a state, through JSON and all."""
    assembly, whole = StateAssembly(), None
    for packet in packets(state, 3, most_values):
        assert packet.control is not None
        control = from_record(json.loads(json.dumps(to_record(packet.control))))
        assert whole is None, "nothing comes after the last part"
        if isinstance(control, StateOutline):
            assert control.generation == 3
            whole = assembly.begin(control)
        else:
            assert isinstance(control, StateTensor)
            assert isinstance(packet.body, torch.Tensor)
            assert packet.body.numel() <= most_values
            whole = assembly.take(control, packet.body)
    return whole


@pytest.mark.parametrize("most_values", [1, 10, 10**6])
def test_a_state_comes_back_as_it_was(most_values):
    came = sent(STATE, most_values)
    assert came is not None
    assert came.keys() == STATE.keys()
    for name in ("values", "mask", "small", "empty"):
        one, other = came[name], STATE[name]
        assert isinstance(one, torch.Tensor)
        assert isinstance(other, torch.Tensor)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert torch.equal(came["random"][0], STATE["random"][0])  # type: ignore[index]
    assert torch.equal(came["optimizer"]["0"][0]["exp_avg"], STATE["optimizer"]["0"][0]["exp_avg"])  # type: ignore[index]
    assert came["counts"] == STATE["counts"]
    assert came["twice"][0] is not came["twice"][1]  # type: ignore[index]


def test_a_state_without_tensors_is_one_message():
    assert sent({"left": [(0, 5)]}, 10) == {"left": [(0, 5)]}


@pytest.mark.parametrize(
    ("outline", "piece"),
    [
        (None, StateTensor("float32", [1], is_last=True)),
        (StateOutline(1, '["pairs:", ["a", ["tensor:", "b"]]]', ["c"]), StateTensor("float32", [1], is_last=True)),
        (StateOutline(1, "[]", ["c"]), StateTensor("float32", [1], is_last=True)),
        (StateOutline(1, '["list:"]', ["c"]), StateTensor("float32", [1], is_last=True)),
        (StateOutline(1, '["pairs:"]', ["c"]), StateTensor("nonsense", [1], is_last=True)),
        (StateOutline(1, '["pairs:"]', ["c"]), StateTensor("float32", [2], is_last=True)),
    ],
)
def test_what_does_not_fit_together_is_refused(outline, piece):
    assembly = StateAssembly()
    if outline is not None:
        assert assembly.begin(outline) is None
    with pytest.raises(WireError):
        assembly.take(piece, torch.zeros(1))
