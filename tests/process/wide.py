"""A model of several mebibytes that computes next to nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ownpace.core.learning.task import Task, TensorSamples


@dataclass(frozen=True)
class Wide(Task):
    """Classes of random vectors, by a net with several large layers and one that takes no part."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(16, 1600), nn.Tanh(), nn.Linear(1600, 1600), nn.Tanh(), nn.Linear(1600, 4))
        model.register_parameter("idle", nn.Parameter(torch.ones(1000)))
        return model

    def train_samples(self) -> TensorSamples:
        generator = torch.Generator().manual_seed(1)
        return TensorSamples(torch.randn(400, 16, generator=generator), torch.arange(400) % 4)

    def test_samples(self) -> TensorSamples:
        return self.train_samples()
