"""A forward pass is told of a layer before it uses it, wherever that is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ownpace.core.learning.layer_needs import LayerNeeds


class Tied(nn.Module):
    """Uses the last layer's weights first, without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.first(functional.linear(inputs, self.head.weight.T)))
        return outputs


class Attention(nn.Module):
    """Uses a projection that is never called as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.last = nn.Linear(4, 4), nn.MultiheadAttention(4, 1), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.last(self.attention(hidden, hidden, hidden, need_weights=False)[0])
        return outputs


class Sometimes(nn.Module):
    """Has a layer that only some passes use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.uses = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.last(self.extra(hidden) if self.uses else hidden)
        return outputs


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


@pytest.mark.parametrize("make", [plain, Tied, Attention, Sometimes])
def test_no_layer_is_used_before_it_was_told_of(make):
    torch.manual_seed(0)
    model = make()
    inputs = torch.randn(3, 4)
    parameters = list(model.parameters())
    needs = LayerNeeds(model, parameters)
    with needs.told(lambda layer: None):
        model(inputs)
    model.uses = True
    right, fresh = model(inputs), [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.data.fill_(float("nan"))
    told: list[int] = []

    def on_need(layer: int) -> None:
        told.append(layer)
        for index in range(layer + 1):
            parameters[index].data.copy_(fresh[index])

    with needs.told(on_need):
        assert torch.equal(model(inputs), right)
    assert max(told) == len(parameters) - 1


def test_layers_are_told_of_one_after_the_other():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    needs = LayerNeeds(model, list(model.parameters()))
    told: list[list[int]] = []
    for _ in range(2):
        told.append([])
        with needs.told(told[-1].append):
            model(torch.randn(3, 4))
    assert told == [[5], [1, 3, 5]]  # the first pass is watched, and told of all at once
    model(torch.randn(3, 4))
    assert told[1] == [1, 3, 5]  # others are told of nothing
