"""Two tasks of a few numbers: one whose weights count samples, and one that has something to learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ownpace.core.learning.task import Task, TensorSamples

LAYERS = 4
"""Enough for three servers."""


class SeveralLayers(nn.Module):
    """A point, in as many equal layers as servers may want to share; its output is what a sample makes of each."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.full((width,), start)) for _ in range(LAYERS))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        return inputs, list(self.parts)


@dataclass(frozen=True, kw_only=True)
class Ballots(Task):
    """The gradient of sample k is 1 at place k of every layer, and 1 at its last place.

    With steps of SGD by the sum of the gradients at a learning rate of 1, every layer then holds how often each sample
    was applied, as a negative number, and at its last place how many were applied in all.
    """

    num_samples: int

    def model(self) -> nn.Module:
        return SeveralLayers(self.num_samples + 1, start=0.0)

    def loss(self, outputs: tuple[Tensor, Sequence[Tensor]], targets: Tensor) -> Tensor:  # type: ignore[override]
        inputs, parts = outputs
        return torch.stack([inputs @ part for part in parts]).sum(0).mean()

    def num_right(self, outputs: object, targets: Tensor) -> None:
        return None

    def train_samples(self) -> TensorSamples:
        return self._samples

    def test_samples(self) -> TensorSamples:
        return TensorSamples(self._samples.inputs[:1], self._samples.targets[:1])

    @cached_property
    def _samples(self) -> TensorSamples:
        ones = torch.ones(self.num_samples, 1)
        return TensorSamples(torch.cat([torch.eye(self.num_samples), ones], 1), ones[:, 0])


@dataclass(frozen=True, kw_only=True)
class Springs(Task):
    """Half the squared distance to a sample, summed over the layers: what an optimizer keeps matters here."""

    num_samples: int

    def model(self) -> nn.Module:
        return SeveralLayers(3, start=1.0)

    def loss(self, outputs: tuple[Tensor, Sequence[Tensor]], targets: Tensor) -> Tensor:  # type: ignore[override]
        inputs, parts = outputs
        return torch.stack([(part - inputs).square().sum(1) for part in parts]).sum(0).mean() / 2

    def num_right(self, outputs: object, targets: Tensor) -> None:
        return None

    def train_samples(self) -> TensorSamples:
        return self._samples

    def test_samples(self) -> TensorSamples:
        return TensorSamples(self._samples.inputs[:1], self._samples.targets[:1])

    @cached_property
    def _samples(self) -> TensorSamples:
        generator = torch.Generator().manual_seed(0)
        return TensorSamples(torch.randn(self.num_samples, 3, generator=generator), torch.zeros(self.num_samples))
