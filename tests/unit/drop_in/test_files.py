"""Checkpoints as files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ownpace.core.contract.errors import InputError
from ownpace.drop_in.files import read, write

NAMES = ("checkpoint.pt", "checkpoint.safetensors")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
tensors = st.builds(torch.tensor, st.lists(st.floats(width=32, allow_nan=False), max_size=3))
values = st.recursive(
    plain | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    @given(st.dictionaries(st.text(max_size=3), values, max_size=4))
    def check(state: dict[str, Any]) -> None:
        write(state, tmp_path / name)
        assert same(read(tmp_path / name), state)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_and_its_tied_tensors_come_back(name: str, tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tied = torch.arange(6.0)
    state = {"optimizer": optimizer.state_dict(), "views": [tied, tied[:3]], "infinite": math.inf}
    write(state, tmp_path / name)
    assert same(read(tmp_path / name), state)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_held_is_refused_and_the_file_before_it_stays(name: str, tmp_path: Path) -> None:
    write({"a": 1}, tmp_path / name)
    with pytest.raises(InputError, match="schedulers/0/lambda is a function, which a checkpoint cannot hold"):
        write({"schedulers": [{"lambda": same}]}, tmp_path / name)
    assert read(tmp_path / name) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no checkpoint .*nothing\.pt"):
        read(tmp_path / "nothing.pt")
    for name in NAMES:
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(InputError, match=f"{name} cannot be read as a checkpoint"):
            read(tmp_path / name)
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(InputError, match="holds a list, not a checkpoint"):
        read(tmp_path / "list.pt")
