"""An optimizer's state by layers and as one vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.learning.layout import Layout
from ownpace.core.learning.optimizer import ELEMENTWISE
from ownpace.core.learning.optimizer_state import Entry, join, split


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # torch's types lack it


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_one_vector_and_its_layers_have_the_same_state(name: str) -> None:
    net, x = make_net(), torch.randn(4, 1, 4, 4)
    layout = Layout(net)
    layers = list(zip(layout.layers, net.parameters(), strict=True))
    flat = nn.Parameter(torch.cat([layer.flatten(p.detach()) for layer, p in layers]))
    by_layer, whole = ELEMENTWISE[name](net.parameters(), lr=0.1), ELEMENTWISE[name]([flat], lr=0.1)
    for _ in range(3):
        by_layer.zero_grad()
        net(x).square().mean().backward()
        flat.grad = torch.cat([layer.flatten(p.grad) for layer, p in layers if p.grad is not None])
        by_layer.step()
        whole.step()
    parts = split(dict(whole.state[flat]), layout.layers)
    for part, parameter in zip(parts, net.parameters(), strict=True):
        expected = by_layer.state[parameter]
        assert part.keys() == expected.keys()
        for key, value in part.items():
            torch.testing.assert_close(value, expected[key])
    joined = join(parts, layout.layers)
    assert joined is not None
    for key, value in whole.state[flat].items():
        torch.testing.assert_close(joined[key], value)


def test_layers_that_took_different_numbers_of_steps_do_not_fit_into_one_vector() -> None:
    layers = Layout(nn.Linear(2, 2)).layers
    states: list[Entry] = [{"step": torch.tensor(3.0), "exp_avg": torch.zeros(layer.shape)} for layer in layers]
    assert join(states, layers) is not None
    states[1]["step"] = torch.tensor(4.0)
    assert join(states, layers) is None
    assert join([{}, states[0]], layers) is None
    assert join([{}, {}], layers) == {}
