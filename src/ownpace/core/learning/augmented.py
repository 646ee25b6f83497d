"""Samples that are changed at random for training: a function of the run's seed, the sample and the visit to it.

No generator is drawn from, so nothing has to be kept: a run that goes on after a failure or from a checkpoint, on
either engine and on any device, changes the same samples in the same way.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ownpace.core.learning.dataset_samples import Data, as_samples
from ownpace.core.learning.samples import Samples
from ownpace.core.learning.seeds import Purpose, seed_for


@runtime_checkable
class AugmentedSamples(Samples, Protocol):
    """Samples that can also be picked in a changed form. What `train_samples` returns may be such."""

    def pick_augmented(self, indices: Tensor, randoms: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, changed by one random number each, from 0 to 2⁶³ − 1."""


@runtime_checkable
class LoadedSamples(AugmentedSamples, Protocol):
    """Samples that take time to load, and can be loaded ahead."""

    def start(self, indices: Tensor, randoms: Tensor) -> None:
        """Begin to load these, which `pick_augmented` will be asked for soon."""


class TrainingSamples:
    """Samples as they are trained on, picked by what a sampler has drawn."""

    def __init__(self, data: Data, seed: int) -> None:
        self._samples = samples = as_samples(data, "train_samples()")
        self._augmented = samples if isinstance(samples, AugmentedSamples) else None
        self._loaded = samples if isinstance(samples, LoadedSamples) else None
        self._seed = seed

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def visits(self) -> bool:
        """Whether a sampler has to say which visit to a sample it is."""
        return self._augmented is not None

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, changed if they are to be; `indices` are a sampler's, with visits if `visits`."""
        if self._augmented is None:
            return self._samples.pick(indices)
        return self._augmented.pick_augmented(indices % len(self._samples), random_numbers(self._seed, indices))

    @property
    def loads(self) -> bool:
        """Whether they take time to load."""
        return self._loaded is not None

    def start(self, indices: Tensor) -> None:
        """Begin to load what a sampler has drawn, if that takes time."""
        if self._loaded is not None:
            self._loaded.start(indices % len(self._samples), random_numbers(self._seed, indices))

    def to(self, device: torch.device) -> TrainingSamples:
        """The same, handed out on another device."""
        return TrainingSamples(self._samples.to(device), self._seed)


def random_numbers(seed: int, drawn: Tensor) -> Tensor:
    """One random number for each number that was drawn, from 0 to 2⁶³ − 1 (splitmix64).

    >>> first, again = (random_numbers(0, torch.tensor([1, 2])) for _ in range(2))
    >>> torch.equal(first, again), bool(first[0] != first[1])
    (True, True)
    """
    # numpy's unsigned numbers: torch has no products that wrap around and no shifts that fill with zeros.
    state = drawn.cpu().numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(seed_for(seed, Purpose.AUGMENTATION))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(1)).astype(np.int64))
