"""Random pictures for a model to chew on: what matters in a benchmark is how long they take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ownpace.core.learning.task import Task, TensorSamples
from ownpace.tasks.models import IMAGE_MODELS


@dataclass(frozen=True)
class Pictures(Task):
    """A model of ours and pictures of its shape."""

    model_name: str
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(4096, *self.shape, generator=generator)
        samples = TensorSamples(images, torch.randint(10, (4096,), generator=generator))
        object.__setattr__(self, "_samples", samples)

    def model(self) -> nn.Module:
        return IMAGE_MODELS[self.model_name](self.shape, 10)

    def train_samples(self) -> TensorSamples:
        return self._samples

    def test_samples(self) -> TensorSamples:
        return TensorSamples(self._samples.inputs[:1], self._samples.targets[:1])
