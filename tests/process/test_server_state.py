"""The state of an optimizer that servers hold: a script's optimizer gives it to them, and has it back in the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.process.small_net import Numbers, make_net, mean_loss
from torch import nn

import ownpace


def loop(fleet: Any, net: nn.Module, optimizer: torch.optim.Optimizer, size: int) -> list[list[int]]:
    seen = []
    for x, y, indices in fleet.batches(Numbers(size), 8):
        seen.append(indices.tolist())
        optimizer.zero_grad()
        mean_loss(net, x, y).backward()
        optimizer.step()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "servers"), [(torch.optim.AdamW, 2), (torch.optim.Adagrad, 1)])
def test_state_goes_to_the_servers_and_comes_back(kind: type[torch.optim.Optimizer], servers: int) -> None:
    net, plain, data = make_net(), make_net(), Numbers(32)
    optimizer = kind(net.parameters(), lr=0.01)  # type: ignore[call-arg]
    expected = kind(plain.parameters(), lr=0.01)  # type: ignore[call-arg]
    seen = []
    for _ in range(2):  # the second begins with the state of the first
        with ownpace.join("async", servers=servers, quiet=True) as fleet:
            fleet.wrap(net, optimizer)
            seen += loop(fleet, net, optimizer, 32)
    for indices in seen:
        expected.zero_grad()
        mean_loss(plain, data.x[indices], data.y[indices]).backward()
        expected.step()
    torch.testing.assert_close(net.state_dict(), plain.state_dict())
    states, others = optimizer.state_dict()["state"], expected.state_dict()["state"]
    assert len(seen) == 8
    assert states.keys() == others.keys()
    for number, state in states.items():
        assert state.keys() == others[number].keys()
        for key, value in state.items():
            torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(others[number][key]))
    optimizer.step()  # an ordinary one again


def test_an_optimizer_that_was_unwrapped_is_not_touched_again() -> None:
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with ownpace.join("async", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        loop(fleet, net, optimizer, 32)
        fleet.unwrap()
        assert all(state["step"] == 4 for state in optimizer.state.values())
        optimizer.step()
    assert all(state["step"] == 5 for state in optimizer.state.values())


def test_a_script_that_saves_its_optimizer_in_the_loop_has_the_servers_state() -> None:
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    steps = []
    with ownpace.join("async", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(32), 8):
            optimizer.zero_grad()
            mean_loss(net, x, y).backward()
            optimizer.step()
            saved = optimizer.state_dict()["state"]
            steps.append([float(state["step"]) for state in saved.values()])
        with pytest.raises(ownpace.InputError, match="parameter servers hold it and would not know; load it before"):
            optimizer.load_state_dict(optimizer.state_dict())
    assert steps == [[float(number)] * 4 for number in range(1, 5)]
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer._optimizer_state_dict_pre_hooks
