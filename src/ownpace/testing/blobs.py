"""A task that a net of two layers learns in an instant: for checks that need layers or an accuracy."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from ownpace.core.learning.task import Samples, Task, TensorSamples


class Blobs(Task):
    """Two clouds of points in the plane, and a small net that tells them apart."""

    def model(self) -> nn.Module:
        """Two layers, four tensors: enough for several servers."""
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def train_samples(self) -> Samples:
        """400 points."""
        return self._samples

    def test_samples(self) -> Samples:
        """The same points."""
        return self._samples

    @cached_property
    def _samples(self) -> TensorSamples:
        points = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        targets = torch.arange(400) % 2
        return TensorSamples(points + 2.0 * (2 * targets - 1)[:, None], targets)
