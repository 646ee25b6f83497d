"""What is trained: a model, data and a loss. A user's own task is one small class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.dataset_samples import Data, as_samples
from ownpace.core.learning.defaults import Defaults
from ownpace.core.learning.samples import Samples, TensorSamples

__all__ = ["Data", "Samples", "Score", "Task", "TensorSamples"]


@dataclass(frozen=True)
class Score:
    """How good a model is on the test data."""

    loss: float
    accuracy: float | None
    """The share of test samples that are right, or None where the task has no such notion."""


class Task(ABC):
    """A model, data and a loss.

    A subclass gives `model`, `train_samples` and `test_samples`. The loss is cross-entropy and accuracy is
    the share of right classes, unless it says otherwise. One that offers several models lists their names in
    `models` and is a dataclass with the field `model_name`, which `--model` sets.

    >>> class Parity(Task):
    ...     def model(self): return nn.Linear(8, 2)
    ...     def train_samples(self): return self._bits(256)
    ...     def test_samples(self): return self._bits(64)
    ...     def _bits(self, n):
    ...         x = torch.arange(n)[:, None] // 2 ** torch.arange(8) % 2
    ...         return TensorSamples(x.float(), x.sum(1) % 2)
    >>> Parity().score(Parity().model(), Parity().test_samples()).accuracy <= 1
    True
    """

    models: ClassVar[tuple[str, ...]] = ()
    """The names of the models to choose from, the default first. Empty: there is one model, and it needs no name."""
    defaults: ClassVar[Defaults] = Defaults()
    """What a run takes where its description says nothing."""
    # Without a value: a subclass may declare it as a dataclass field, and would inherit the value as its default.
    model_name: str
    """The chosen one, where there is a choice."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, its weights drawn from torch's global generator."""

    @abstractmethod
    def train_samples(self) -> Data:
        """What to train on: `TensorSamples`, a pair of tensors, or a map-style Dataset of inputs and targets."""

    @abstractmethod
    def test_samples(self) -> Data:
        """What to evaluate on, likewise."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The *mean* loss of a batch, a scalar: cross-entropy, unless a subclass says otherwise."""
        # Of one column, cross-entropy is 0 whatever the model does; of numbers, it is of what they are not.
        if outputs.ndim < 2 or outputs.shape[1] < 2 or targets.is_floating_point():
            raise InputError(
                f"the task {type(self).__name__} has no loss of its own, and cross-entropy needs an output for each "
                f"class and class numbers as targets, but outputs are {list(outputs.shape[1:])} for each sample and "
                f"targets {str(targets.dtype).removeprefix('torch.')}; write "
                "loss(self, outputs, targets), as in functional.mse_loss(outputs, targets)"
            )
        return functional.cross_entropy(outputs, targets)

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same, where training is to minimise another than evaluation measures (smoothed targets, say)."""
        return self.loss(outputs, targets)

    def penalty(self, model: nn.Module) -> Tensor | None:
        """What is added to the loss for the weights themselves (L2, say), if anything."""
        return None

    def layer_work(self) -> Mapping[str, float] | None:
        """How much of the computing each parameter tensor takes, by its name in the model, in any unit.

        Used where layers travel on their own, for when each is needed and ready. None: by the parameters of a layer,
        times the places of a sample at which they are used.
        """
        return None

    def objective(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: the mean loss of a batch, and the penalty."""
        loss = self.training_loss(model(inputs), targets)
        penalty = self.penalty(model)
        return loss if penalty is None else loss + penalty

    def num_right(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """How many of a batch the model got right (None: no such notion, as where targets are no class numbers)."""
        if outputs.ndim != 2 or outputs.shape[1] < 2 or targets.ndim != 1 or targets.is_floating_point():
            return None
        return (outputs.argmax(1) == targets).sum()

    def score(self, model: nn.Module, samples: Data, chunk: int = 2000) -> Score:
        """Loss and accuracy over `samples`, the model in evaluation mode."""
        samples = as_samples(samples)
        loss, right = 0.0, 0
        counted = True
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for inputs, targets in _chunks(samples, chunk):
                outputs = model(inputs)
                # Weighted by its samples: the last chunk may be smaller.
                loss += float(self.loss(outputs, targets)) * len(targets)
                num = self.num_right(outputs, targets)
                counted = counted and num is not None
                right += 0 if num is None else int(num)
            # Once, not per chunk: it depends on the weights alone.
            penalty = self.penalty(model)
        model.train(was_training)
        loss = loss / len(samples) + (0.0 if penalty is None else float(penalty))
        return Score(loss, right / len(samples) if counted else None)


def _chunks(samples: Samples, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), chunk):
        yield samples.pick(torch.arange(start, min(start + chunk, len(samples))))
