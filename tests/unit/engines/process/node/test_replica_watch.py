"""Checksums of layers: equal only where all bits are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.replica_watch import _BLOCK, CHECK_EVERY, is_due, layer_checksums

SHAPES = [(3, 4), (1,), (0,), (7,), ()]
LAYOUT = Layout.of([(f"layer {n}", torch.Size(shape), False) for n, shape in enumerate(SHAPES)])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def sums(values: Tensor) -> list[int]:
    return [int(number) for number in layer_checksums(values, LAYOUT)]


@pytest.mark.parametrize("dtype", DTYPES)
@given(place=st.integers(0, LAYOUT.size - 1), bit=st.integers(0, 63))
def test_one_changed_bit_shows_in_its_layer_alone(dtype, place, bit):
    values = torch.linspace(-1, 1, LAYOUT.size).to(dtype)
    changed = values.clone()
    integers = changed.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    width = 8 * dtype.itemsize
    mask = 1 << bit % width
    integers[place] ^= mask - (1 << width) if mask >> (width - 1) else mask
    differ = [one != other for one, other in zip(sums(values), sums(changed), strict=True)]
    assert differ == [layer.start <= place < layer.stop for layer in LAYOUT.layers]


def test_changes_of_two_numbers_do_not_cancel():
    values = torch.ones(LAYOUT.size)
    up_and_down, swapped = values.clone(), values.clone()
    up_and_down[:2] = torch.nextafter(values[:2], torch.tensor([2.0, 0.0]))
    assert sums(up_and_down) != sums(values)
    swapped[0], swapped[1] = 0.0, -0.0
    assert sums(swapped) != sums(values)
    swapped_too = swapped.clone()
    swapped_too[1] = 0.0
    assert sums(swapped) != sums(swapped_too)


@given(st.lists(st.floats(width=32), min_size=LAYOUT.size, max_size=LAYOUT.size))
def test_numpy_and_torch_compute_the_same(numbers):
    values = torch.tensor(numbers)
    bits = values.view(torch.int32)
    parts = [bits[layer.start : layer.stop] for layer in LAYOUT.layers]
    assert sums(values) == [int(((part + part + 1) * part).sum(dtype=torch.int64)) for part in parts]


def test_layers_may_lie_across_blocks():
    sizes = [_BLOCK, 0, _BLOCK - 1, 1, 9, 3 * _BLOCK + 5, 0, 7]
    layout = Layout.of([(f"layer {n}", torch.Size([size]), False) for n, size in enumerate(sizes)])
    values = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
    parts = values.view(torch.int32).split(sizes)
    expected = [int(((part + part + 1) * part).sum(dtype=torch.int64)) for part in parts]
    assert layer_checksums(values, layout).tolist() == expected


def test_checks_are_frequent_at_first():
    assert [version for version in range(1, 4000) if is_due(version)] == [
        *(2**power for power in range(10)),
        *range(2 * CHECK_EVERY, 4000, CHECK_EVERY),
    ]
