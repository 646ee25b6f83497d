"""Gradients of more samples than fit into memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ownpace.core.learning.flat import FlatModel
from ownpace.engines.process.node.computer import GradientComputer
from ownpace.tasks.images import Digits

CPU = torch.device("cpu")


class Cramped(Digits):
    """No more than twelve samples at once fit into memory, forward or back."""

    def __init__(self, *, at: str) -> None:
        super().__init__()
        self._at = at
        self.sizes: list[int] = []

    def objective(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        if len(inputs) > 12 and self._at == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        loss = super().objective(model, inputs, targets)
        if len(inputs) > 12:
            loss.register_hook(self._fail)
        self.sizes.append(len(inputs))
        return loss

    def _fail(self, gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize("at", ["forward", "backward"])
@pytest.mark.parametrize("by_layer", [False, True])
def test_what_does_not_fit_is_computed_in_halves(at, by_layer):
    torch.manual_seed(0)
    cramped, indices = Cramped(at=at), torch.arange(33)
    model = FlatModel(cramped, CPU)
    computer = GradientComputer(model, cramped.train_samples(), CPU, graphs=False)
    values, plus = model.initial, torch.full_like(model.initial, 0.5)
    inputs, targets = cramped.train_samples().pick(indices)
    expected, loss = FlatModel.gradient(model_at(values), inputs, targets)
    losses: list[Tensor] = []
    layers: list[int] = []

    def compute() -> tuple[Tensor, Tensor]:
        computer.bind(values, indices)
        if not by_layer:
            return computer.compute(indices, values, plus, None)
        losses.clear()
        layers.clear()
        out = torch.empty_like(values)
        return out, computer.compute_by_layer(indices, out, plus, layers.append, lambda _: None, losses.append)

    with pytest.warns(UserWarning, match="33 samples at once do not fit into memory: at most 16"):
        total, mean = compute()
    torch.testing.assert_close(total, expected + plus)
    torch.testing.assert_close(mean, loss)
    assert len(losses) == by_layer
    cramped.sizes.clear()
    torch.testing.assert_close(compute()[0], expected + plus)
    assert cramped.sizes == [11, 11, 11]  # in even pieces, and nothing is tried again
    if by_layer:
        assert sorted(layers) == list(range(len(model.layout.layers)))
        assert len(losses) == 1


def model_at(values: Tensor) -> FlatModel:
    model = FlatModel(Digits(), CPU)
    model.bind(values, model.new_buffers())
    return model


def test_other_errors_are_not_taken_for_too_little_memory():
    class Broken(Digits):
        def objective(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    model = FlatModel(Broken(), CPU)
    computer = GradientComputer(model, Broken().train_samples(), CPU, graphs=False)
    computer.bind(model.initial, torch.arange(4))
    with pytest.raises(RuntimeError, match="mat1"):
        computer.compute(torch.arange(4), model.initial, None, None)
