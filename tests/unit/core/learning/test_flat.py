"""Models as flat vectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.task import Task, TensorSamples
from ownpace.tasks import Digits


class Tiny(Task):
    """A net with BatchNorm and a parameter that the loss does not use."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        model.register_parameter("unused", nn.Parameter(torch.ones(5)))
        return model

    def train_samples(self) -> TensorSamples:
        generator = torch.Generator().manual_seed(1)
        return TensorSamples(torch.randn(20, 3, generator=generator), torch.arange(20) % 2)

    def test_samples(self) -> TensorSamples:
        return self.train_samples()


def flat_gradients(model: nn.Module) -> torch.Tensor:
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.reshape(-1) for part in parts])


def test_gradient_is_the_sum_over_samples_of_their_gradients():
    task = Digits(model_name="mlp")
    model = FlatModel(task, torch.device("cpu"))
    inputs, targets = task.train_samples().pick(torch.arange(7))
    model.bind(model.initial, [])
    total, loss = model.gradient(inputs, targets)

    expected, expected_loss = torch.zeros_like(total), 0.0
    for index in range(7):
        model.module.zero_grad()
        one = task.objective(model.module, inputs[index : index + 1], targets[index : index + 1])
        one.backward()
        expected += flat_gradients(model.module)
        expected_loss += one.item()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
    assert 7 * loss.item() == pytest.approx(expected_loss, rel=1e-5)


def test_bind_points_at_the_vector_and_copies_nothing():
    model = FlatModel(Tiny(), torch.device("cpu"))
    values = torch.arange(float(model.layout.size))
    model.bind(values, model.new_buffers())
    assert next(p.data_ptr() for p in model.module.parameters()) == values.data_ptr()
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in model.module.parameters()]), values)


def test_unused_parameters_get_zero():
    model = FlatModel(Tiny(), torch.device("cpu"))
    unused = next(layer for layer in model.layout.layers if layer.name == "unused")
    model.bind(model.initial, model.new_buffers())
    total, _ = model.gradient(*Tiny().train_samples().pick(torch.arange(8)))
    assert torch.count_nonzero(total[unused.start : unused.stop]) == 0
    assert torch.count_nonzero(total) > 0


def test_each_worker_keeps_its_own_buffers_and_their_mean_is_evaluated():
    model = FlatModel(Tiny(), torch.device("cpu"))
    mine, yours = model.new_buffers(), model.new_buffers()
    samples = Tiny().train_samples()
    model.bind(model.initial, mine)
    model.gradient(*samples.pick(torch.arange(10)))
    model.gradient(*samples.pick(torch.arange(10)))
    assert not torch.equal(mine[0], yours[0])
    mean = model.mean_buffers([mine, yours])
    torch.testing.assert_close(mean[0], (mine[0] + yours[0]) / 2)
    assert int(mean[2]) == 2  # the count of batches is not averaged
    assert int(yours[2]) == 0


class GivenUp(BaseException):
    """As if a new generation began in the middle of a pass."""


def test_a_pass_that_is_given_up_in_the_middle_leaves_nothing_behind():
    torch.manual_seed(0)
    model = FlatModel(Digits(), torch.device("cpu"))
    batch = Digits().train_samples().pick(torch.arange(8))
    right = model.gradient(*batch)[0]
    out = torch.empty_like(right)

    def give_up(layer: int) -> None:
        raise GivenUp

    for hooks in ({"on_need": give_up}, {"on_loss": lambda loss: give_up(0)}, {}):
        with pytest.raises(GivenUp):
            model.gradient_by_layer(*batch, out, None, give_up, **hooks)
    told: list[int] = []
    model.gradient_by_layer(*batch, out, None, told.append, told.append)
    assert torch.equal(out, right)
    assert len(told) > len(model.layout.layers)
