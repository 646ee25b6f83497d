"""What a script sees of the model inside its loop: the global parameters, whatever the algorithm is doing with them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tests.process.small_net import Numbers, make_net, mean_loss, sgd
from torch import Tensor, nn

import ownpace


def plain_states(batches: list[list[int]]) -> Iterator[dict[str, Tensor]]:
    """The model before each step of a plain loop over these batches, and after the last."""
    net, data = make_net(), Numbers(64)
    optimizer = sgd(net)
    for indices in batches:
        yield copied(net)
        mean_loss(net, data.x[indices], data.y[indices]).backward()
        optimizer.step()
        optimizer.zero_grad()
    yield copied(net)


def copied(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.named_parameters()}


@pytest.mark.parametrize(
    ("algorithm", "parameters", "behind"),
    [
        ("sync", {}, lambda step: step),
        ("pace", {}, lambda step: max(0, step - 1)),
        ("local", {"steps": 3}, lambda step: step - step % 3),
    ],
)
def test_a_checkpoint_and_an_evaluation_in_the_loop_see_the_model(algorithm, parameters, behind) -> None:
    """Not the point where a gradient is wanted, nor what local steps have made of the model in mid-round."""
    net = make_net()
    optimizer = sgd(net)
    handed_out, saved, evaluated, after_step = [], [], [], []
    with ownpace.join(algorithm, parameters=parameters) as fleet:
        fleet.wrap(net, optimizer)
        for x, y, indices in fleet.batches(Numbers(64), 8):
            handed_out.append(indices.tolist())
            saved.append(net.state_dict())
            evaluated.append(fleet.evaluate(copied))
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            after_step.append(net.state_dict())
    plain = list(plain_states(handed_out))
    for step in range(len(handed_out)):
        torch.testing.assert_close(saved[step], plain[behind(step)])
        torch.testing.assert_close(evaluated[step], plain[behind(step)])
        torch.testing.assert_close(after_step[step], plain[behind(step + 1)])


def test_a_whole_model_can_be_copied_but_not_pickled(tmp_path: Path) -> None:
    net = make_net()
    optimizer = sgd(net)
    with ownpace.join("sync", quiet=True) as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(16), 8):
            copy = deepcopy(net)
            torch.testing.assert_close(copy.state_dict(), net.state_dict())
            next(copy.parameters()).data.zero_()
            assert not next(iter(copy.state_dict().values())).any()
            with pytest.raises(ownpace.InputError, match=r"save model\.state_dict\(\)"):
                torch.save(net, tmp_path / "net.pt")
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(net, tmp_path / "net.pt")


def test_a_part_of_the_model_is_saved_without_the_rest() -> None:
    net = make_net()
    optimizer = sgd(net)
    sizes = []
    with ownpace.join("sync") as fleet:
        fleet.wrap(net, optimizer)
        for x, y, _ in fleet.batches(Numbers(16), 8):
            file = io.BytesIO()
            torch.save(net[0].state_dict(), file)
            sizes.append(file.tell())
            assert net.state_dict(keep_vars=True)["0.weight"] is net[0].weight
            mean_loss(net, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    file = io.BytesIO()
    torch.save(make_net()[0].state_dict(), file)
    assert set(sizes) == {file.tell()}
