"""Memory is used again once nobody holds it, and never before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ownpace.engines.process.talk.spare_memory import SpareMemory

SIZE = 1 << 19


@pytest.mark.parametrize(
    "hold", [lambda t: t, lambda t: t[5:9], lambda t: t.detach(), lambda t: t.data, lambda t: t.view(2, -1)]
)
def test_what_is_held_is_left_alone(hold: Callable[[Tensor], Tensor]) -> None:
    spare = SpareMemory(SIZE, torch.zeros(0))
    first = spare.take()
    place = first.data_ptr()
    held = hold(first)
    del first
    second = spare.take()
    assert second.data_ptr() != place
    del held
    assert spare.take().data_ptr() == place
    numbers = spare.take()[3:].numpy()  # an array holds the tensor that it was made of
    assert spare.take().data_ptr() != place
    del numbers
    assert spare.take().data_ptr() == place


def test_small_vectors_and_more_than_are_kept() -> None:
    small = SpareMemory(3, torch.zeros(0, dtype=torch.float64))
    assert small.take().dtype == torch.float64
    spare = SpareMemory(SIZE, torch.zeros(0))
    taken = [spare.take() for _ in range(9)]
    assert len({tensor.data_ptr() for tensor in taken}) == 9
