"""Computes gradients and evaluates models, for every engine."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ownpace.core.contract.values import Shard
from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.dataset_samples import samples_to_test
from ownpace.core.learning.flat import Buffers, FlatModel
from ownpace.core.learning.optimizer import FlatOptimizer, OptimizerSpec
from ownpace.core.learning.task import Samples, Score, Task
from ownpace.engines.replayed import ReplayedGradients


class RealLearning:
    """Real gradients of a real model, on any device."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        autocast: torch.dtype | None = None,
        *,
        seed: int = 0,
        graphs: bool = False,
    ) -> None:
        self._task = task
        self._seed = seed
        self._model = FlatModel(task, device, autocast)
        self._device = device
        self.layout = self._model.layout
        self.initial = self._model.initial
        self._model.module.train()
        self._replayed = ReplayedGradients(self._model) if graphs else None

    # On first use: where a model is only evaluated, the training data is never moved to the device.
    @cached_property
    def _train(self) -> TrainingSamples:
        return TrainingSamples(self._task.train_samples(), self._seed).to(self._device)

    @cached_property
    def _test(self) -> Samples:
        return samples_to_test(self._task).to(self._device)

    def optimizer(self, spec: OptimizerSpec, shard: Shard) -> FlatOptimizer:
        like = self.initial[shard.start : shard.stop]
        return FlatOptimizer(self.layout, shard, like, spec.build, clip_norm=spec.clip_norm)

    def new_buffers(self) -> Buffers:
        return self._model.new_buffers()

    def gradient(self, values: Tensor, buffers: Buffers, indices: Tensor) -> tuple[list[Tensor], float]:
        if self._replayed is not None and self._replayed.wants(len(indices)):
            parts, loss = self._replayed.gradient(values, buffers, *self._train.pick(indices))
            return parts, loss.item() * indices.shape[0]
        self._model.bind(values, buffers)
        parts, loss = self._model.layer_gradients(*self._train.pick(indices))
        if buffers:
            buffers[:] = self._model.take_buffers()
        return parts, loss.item() * indices.shape[0]

    def score(self, values: Tensor, buffers: list[Buffers]) -> Score:
        self._model.bind(values.to(self._device), self._model.mean_buffers(buffers))
        return self._task.score(self._model.module, self._test)

    def export(self, values: Tensor, buffers: list[Buffers]) -> dict[str, Tensor]:
        self._model.bind(values.to(self._device), self._model.mean_buffers(buffers))
        return {name: value.detach().clone() for name, value in self._model.module.state_dict().items()}
