"""The gradient noise scale: how many samples an update can have before more of them stop paying.

    B = tr(Σ) / |G|²        Σ: the covariance of the gradient of one sample; G: the mean gradient

(McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, the simple noise scale.) An update of B samples
is as much signal as noise: far fewer samples waste updates, far more waste samples. With m batches of b samples, whose
mean gradients are g_i, both parts are estimated without bias:

    tr(Σ) ≈ b / (m − 1) · Σ_i |g_i − ḡ|²
    |G|²  ≈ |ḡ|² − tr(Σ) / (m b)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.flat import FlatModel
from ownpace.core.learning.task import Task

_NUM_BATCHES = 64
_MOST_BYTES = 1 << 28
"""Of all gradients of a measurement together."""


@dataclass(frozen=True)
class NoiseScale:
    """The noise of gradients, and its two parts."""

    samples: float
    """tr(Σ) / |G|²; infinite where no mean gradient can be told from noise."""
    variance: float
    """tr(Σ): of the gradient of one sample, summed over all parameters."""
    squared: float
    """|G|², of the mean gradient; by chance, an estimate may be below 0."""


def noise_scale(gradients: Tensor, samples_each: int) -> NoiseScale:
    """The noise scale from the mean gradients (rows) of batches of this many samples each.

    >>> noise_scale(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 4)
    NoiseScale(samples=2.6666666666666665, variance=8.0, squared=3.0)
    """
    num = len(gradients)
    gradients = gradients.double()  # small differences of large sums
    mean = gradients.mean(0)
    variance = samples_each * float(((gradients - mean) ** 2).sum()) / (num - 1)
    squared = float((mean**2).sum()) - variance / (num * samples_each)
    return NoiseScale(variance / squared if squared > 0 else math.inf, variance, squared)


def measured_noise(task: Task, model: Mapping[str, Tensor], batch_size: int, *, seed: int = 0) -> NoiseScale | None:
    """The noise scale of a task where a model stands; None if there are too few samples or too many parameters."""
    flat = FlatModel(task, torch.device("cpu"))
    flat.module.load_state_dict(dict(model))
    flat.module.train()
    train = TrainingSamples(task.train_samples(), seed)
    num_train = len(samples_to_learn(task))
    each = max(1, min(batch_size, num_train // _NUM_BATCHES))
    num = min(_NUM_BATCHES, num_train // each, _MOST_BYTES // (4 * max(1, flat.layout.size)))
    if num < 2:
        return None
    # Without replacement: the batches are different samples.
    order = torch.randperm(num_train, generator=torch.Generator().manual_seed(seed))
    rows = []
    for index in range(num):
        total, _ = flat.gradient(*train.pick(order[index * each : (index + 1) * each]))
        rows.append(total / each)
    return noise_scale(torch.stack(rows), each)
