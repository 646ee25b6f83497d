"""A backward pass with less around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.learning import backward


@pytest.mark.parametrize("has_engine", [True, False])
def test_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, has_engine: bool) -> None:
    if not has_engine:
        monkeypatch.setattr(backward, "_engine_run_backward", None)
    net, unused = nn.Linear(3, 2), nn.Parameter(torch.ones(1))
    parameters, inputs = [*net.parameters(), unused], torch.arange(6.0).reshape(2, 3)
    seed = torch.tensor(5.0)
    expected = torch.autograd.grad(net(inputs).square().mean(), list(net.parameters()), seed)
    *found, none = backward.gradients_of(net(inputs).square().mean(), parameters, seed)
    assert none is None
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True) if one is not None)
    assert all(parameter.grad is None for parameter in parameters)


def test_a_loss_without_parameters_is_refused_in_torchs_words() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward.gradients_of(torch.tensor(1.0), [nn.Parameter(torch.ones(1))], torch.tensor(1.0))
