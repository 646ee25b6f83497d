"""Where layers are in the flat vector, and how it is divided among servers."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.layout import Layout


def test_frozen_parameters_stay_out():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert [layer.name for layer in Layout(model).layers] == ["weight"]


def test_nothing_to_train_and_mixed_types_are_refused():
    frozen = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameters"):
        Layout(frozen)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(InputError, match=r"float32, torch\.float64"):
        Layout(mixed)


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), data=st.data())
def test_shards_are_whole_layers_in_order_and_cover_everything(sizes, data):
    module = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])
    layout = Layout(module)
    count = data.draw(st.integers(1, len(sizes)))
    shards = layout.shards(count)
    edges = {layer.start for layer in layout.layers} | {layout.size}
    assert len(shards) == count
    assert [shard.index for shard in shards] == list(range(count))
    assert shards[0].start == 0
    assert shards[-1].stop == layout.size
    assert all(a.stop == b.start for a, b in itertools.pairwise(shards))
    assert all(shard.stop > shard.start and shard.start in edges for shard in shards)


def test_more_shards_than_layers_are_refused():
    with pytest.raises(InputError, match="3 servers, but the model has only 2 layers"):
        Layout(nn.Linear(2, 2)).shards(3)
