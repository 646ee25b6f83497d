"""A net of layers of one mebibyte each: a gradient is summed in as many buckets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ownpace.core.learning.task import Task, TensorSamples

WIDTH = 512


@dataclass(frozen=True)
class Deep(Task):
    """Classes of random vectors."""

    layers: int = 5

    def model(self) -> nn.Module:
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(self.layers)]
        return nn.Sequential(*layers)

    def train_samples(self) -> TensorSamples:
        generator = torch.Generator().manual_seed(1)
        return TensorSamples(torch.randn(400, WIDTH, generator=generator), torch.arange(400) % WIDTH)

    def test_samples(self) -> TensorSamples:
        return self.train_samples()
