"""The mathematics: a parabola's gradients and loss, and SGD by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from tests.conformance.plain.setting import TASK, Setting
from torch import Tensor

from ownpace.core.learning.task import Samples, TensorSamples


def _inputs(samples: Samples) -> Tensor:
    assert isinstance(samples, TensorSamples)
    return samples.inputs.double()


INPUTS = _inputs(TASK.train_samples())
CURVATURES = TASK.curvatures.double()


def start() -> Tensor:
    """The parameters at which every run begins."""
    return torch.ones(TASK.dimensions, dtype=torch.float64)


def gradient_sum(weights: Tensor, inputs: Tensor) -> Tensor:
    """Σ over the samples of a·(w − x)."""
    total = torch.zeros_like(weights)
    for sample in inputs:
        total += CURVATURES * (weights - sample)
    return total


def sum_at(point: Tensor, pieces: Iterable[Tensor]) -> Tensor:
    """The same over the samples of several micro-batches."""
    return added(gradient_sum(point, piece) for piece in pieces)


def added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of vectors."""
    return sum(parts, torch.zeros(TASK.dimensions, dtype=torch.float64))


def loss(weights: Tensor) -> float:
    """The mean of ½·Σ a(w − x)² over all test samples."""
    distances = weights - _inputs(TASK.test_samples())
    return float((0.5 * CURVATURES * distances.square()).sum(1).mean())


class Sgd:
    """SGD with momentum and weight decay, in torch's convention."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.buffer: Tensor | None = None

    def direction(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """Where the next step would lead along, per learning rate."""
        gradient = gradient + self.setting.weight_decay * weights
        return gradient if self.buffer is None else self.setting.momentum * self.buffer + gradient

    def moved(self, weights: Tensor, gradient: Tensor, lr_scale: float = 1.0) -> Tensor:
        """The parameters after one step along a mean gradient."""
        self.buffer = self.direction(weights, gradient)
        return weights - self.setting.lr * lr_scale * self.buffer


class Model:
    """The global parameters, their optimizer, and where the schedule is."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.weights = start()
        self.samples = 0
        """Of all updates so far; what the schedule is indexed by."""
        self._memories: dict[int, Sgd] = {}

    @property
    def schedule(self) -> float:
        """The factor on the learning rate."""
        done = min(1.0, self.samples / self.setting.samples)
        return 0.5 * (1 + math.cos(math.pi * done)) if self.setting.cosine else 1.0

    @property
    def lr(self) -> float:
        return self.setting.lr * self.schedule

    def peek(self, gradient: Tensor, scale: float = 1.0) -> Tensor:
        """Where a step along a mean gradient would lead."""
        return self.weights - scale * self.lr * self._memory(0).direction(self.weights, gradient)

    def step(self, gradient: Tensor, samples: int, scale: float = 1.0, memory: int = 0) -> None:
        """One step along the mean gradient of this many samples, with one of several momenta."""
        self.weights = self._memory(memory).moved(self.weights, gradient, scale * self.schedule)
        self.samples += samples

    def _memory(self, number: int) -> Sgd:
        return self._memories.setdefault(number, Sgd(self.setting))
