"""Whole states on their way: they come back as they were, in pieces that any receiver takes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from ownpace.core.contract.errors import SharedMemoryError, WireError
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.talk.control_record import from_record, to_record
from ownpace.engines.process.talk.regrouping import StateInMemory, StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, from_memory, in_memory, packets

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


def given(state: PlainState, *, copied: bool = False) -> PlainState:
    """What another process finds in memory."""
    control, memory = in_memory(state, 3)
    told = from_record(json.loads(json.dumps(to_record(control))))
    assert isinstance(told, StateInMemory)
    assert told.generation == 3
    assert not memory.is_taken
    came = from_memory(told, "giver", copied=copied)
    assert memory.is_taken
    memory.close()
    return came


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


@pytest.mark.parametrize("most_values", [1, 10, 10**6, None])
def test_a_state_comes_back_as_it_was(most_values):
    came = given(STATE) if most_values is None else sent(STATE, most_values)
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
    torch.set_rng_state(came["random"][0])  # type: ignore[index]  # which reads it in a way of its own


def test_a_state_without_tensors_is_one_message():
    state: PlainState = {"left": [(0, 5)]}
    assert sent(state, 10) == given(state) == given(state, copied=True) == state


def test_who_writes_to_a_state_in_memory_changes_that_of_nobody_else():
    control, memory = in_memory({"values": torch.ones(3)}, 1)
    first, second = from_memory(control, "giver"), from_memory(control, "giver")
    memory.close()  # which takes nothing from those who have it
    first["values"].zero_()  # type: ignore[attr-defined]
    assert torch.equal(second["values"], torch.ones(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": [[17]]},
        {"shapes": [[1 << 62, 1 << 62]]},
        {"shapes": [[1 << 62, 1 << 62, 0]]},
        {"shapes": []},
        {"dtypes": ["nonsense"]},
        {"names": ["another"]},
        {"outline": "["},
    ],
)
def test_memory_that_is_not_as_announced_is_refused(change):
    control, memory = in_memory({"values": torch.ones(3)}, 1)
    with pytest.raises(WireError):
        from_memory(replace(control, **change), "liar")
    memory.close()


def test_memory_that_is_gone_or_none_is_refused(tmp_path):
    control, memory = in_memory({"values": torch.ones(3)}, 1)
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(200))
    with victim.open("r+b") as opened, pytest.raises(SharedMemoryError, match="not memory of ours"):
        from_memory(replace(control, file=opened.fileno()), "liar")
    assert victim.read_bytes() == bytes(200)
    memory.close()
    with pytest.raises(SharedMemoryError):
        from_memory(control, "giver")


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
