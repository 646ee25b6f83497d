"""A task that shows which samples have been learnt from, and how often: each has a parameter of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ownpace.core.learning.task import Task, TensorSamples


class Marks(nn.Module):
    """A number for each sample; the gradient of a sample is −1 at its own, and 0 elsewhere."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(size))

    def forward(self, indices: Tensor) -> Tensor:
        return -self.marks[indices]


@dataclass(frozen=True)
class Tallied(Task):
    """Samples that leave a mark."""

    size: int = 4096

    def model(self) -> nn.Module:
        return Marks(self.size)

    def train_samples(self) -> TensorSamples:
        return TensorSamples(torch.arange(self.size), torch.zeros(self.size))

    def test_samples(self) -> TensorSamples:
        return TensorSamples(torch.arange(8), torch.zeros(8))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    def num_right(self, outputs: Tensor, targets: Tensor) -> None:
        return None


class Counting(torch.optim.Optimizer):
    """Adds 1 wherever there is a gradient: how often each sample has been in an update."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 1.0})  # type: ignore[arg-type]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.add_((parameter.grad != 0).to(parameter.dtype))
