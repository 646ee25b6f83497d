"""Convex tasks: linear models on any LIBSVM file, and a noisy quadratic."""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ownpace.core.contract.errors import InputError, listed
from ownpace.core.learning.defaults import Defaults
from ownpace.core.learning.out_of_memory import enough_memory
from ownpace.core.learning.task import Samples, Task, TensorSamples
from ownpace.core.settings import not_negative, positive
from ownpace.tasks.files import data_folder
from ownpace.tasks.models import Margin, Point

_MOST_BYTES = 8 * 2**30


@dataclass(frozen=True, kw_only=True)
class Svmlight(Task):
    """Two classes from any LIBSVM file, by L2-regularised logistic regression or SVM"""

    path: str
    """The file (.gz too), or its name in the folder libsvm of OWNPACE_DATA."""
    test_path: str | None = None
    """The test file; without one, a fifth of the rows is held out."""
    model_name: Literal["logistic", "svm"] = "logistic"
    l2: float = 1e-4
    """λ: λ/2·‖w‖² is added to the loss; the bias is left out."""
    models: ClassVar = ("logistic", "svm")
    defaults: ClassVar = Defaults(lr=0.2, epochs=5)

    def __post_init__(self) -> None:
        not_negative(l2=self.l2)

    def model(self) -> nn.Module:
        return Margin(self._samples[0].inputs.shape[1])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        margins = outputs * targets
        losses = functional.softplus(-margins) if self.model_name == "logistic" else functional.relu(1 - margins)
        return losses.mean()

    def penalty(self, model: nn.Module) -> Tensor:
        # By hand: the optimizer's weight decay would include the bias.
        assert isinstance(model, Margin)
        return self.l2 / 2 * model.weight.square().sum()

    def num_right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * targets > 0).sum()

    def train_samples(self) -> Samples:
        return self._samples[0]

    def test_samples(self) -> Samples:
        return self._samples[1]

    @cached_property
    def _samples(self) -> tuple[TensorSamples, TensorSamples]:
        if self.test_path is not None:
            train, test = _read(self.path, self.test_path)
            return train, test
        (rows,) = _read(self.path)
        # Seed 0, whatever the run's: runs with different seeds are tested on the same rows.
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        if len(rows) < 2:
            raise InputError(f"{self.path} has {len(rows)} rows; at least two are needed, to train on and to test")
        num_test = max(1, len(rows) // 5)
        held_out, kept = order[:num_test], order[num_test:]
        return TensorSamples(*rows.pick(kept)), TensorSamples(*rows.pick(held_out))


def _read(*paths: str) -> tuple[TensorSamples, ...]:
    try:
        from sklearn.datasets import load_svmlight_files
    except ImportError:
        raise InputError("LIBSVM files are read by scikit-learn; install it: pip install 'ownpace[data]'") from None
    found = [str(_find(path)) for path in paths]
    try:
        parts = load_svmlight_files(found)
    # OverflowError and MemoryError: features numbered beyond what a matrix can have.
    except (ValueError, OSError, EOFError, OverflowError, MemoryError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{' and '.join(found)} cannot be read as LIBSVM data: {reason}") from None
    samples = []
    classes: list[float] = []
    for path, matrix, labels in zip(found, parts[::2], parts[1::2], strict=True):
        present = sorted({float(label) for label in labels})
        # Those of the training file: the test file's must mean the same.
        classes = classes or present
        if len(classes) != 2:
            raise InputError(f"{path} has {len(classes)} classes; svmlight takes files with two")
        if not set(present) <= set(classes):
            raise InputError(
                f"{path} has the labels {listed(map(str, present), 8)}, but those to train on have "
                f"{listed(map(str, classes))}; both files must have the same"
            )
        if not np.isfinite(matrix.data).all() or not np.isfinite(classes).all():
            raise InputError(f"{path} holds numbers that are not finite; every feature and label must be")
        # Before it is made dense: a sparse file of some megabytes may not fit into memory.
        if matrix.shape[0] * matrix.shape[1] * 4 > _MOST_BYTES:
            raise InputError(
                f"{path} has {matrix.shape[0]} rows of {matrix.shape[1]} features: as a dense matrix that is over "
                f"{_MOST_BYTES >> 30} GiB; use a file with fewer features"
            )
        targets = torch.where(torch.tensor(labels) == classes[1], 1.0, -1.0)
        with (
            np.errstate(over="ignore"),
            enough_memory(f"the {matrix.shape[0]} rows of {matrix.shape[1]} features in {path}"),
        ):
            # In one step: a second copy, of doubles, may not fit.
            dense = torch.from_numpy(matrix.astype(np.float32).toarray())
        if not dense.isfinite().all():
            raise InputError(f"{path} holds numbers that are too large; every feature must fit 32 bits")
        samples.append(TensorSamples(dense, targets.float()))
    return tuple(samples)


def _find(name: str) -> Path:
    folder = data_folder()
    places = [Path(name)] if folder is None else [Path(name), folder / "libsvm" / name]
    with contextlib.suppress(OSError, ValueError):  # a name that no file can have
        for place in places:
            if place.is_file():
                return place
    looked = " or ".join(str(place)[:200] for place in places)
    raise InputError(f"there is no file {looked}; give the path of a LIBSVM file: -t path=FILE")


@dataclass(frozen=True, kw_only=True)
class Quadratic(Task):
    """½·Σ a_k(w_k − x_k)² over noisy samples x: a parabola whose minimum is known; for tests"""

    dimensions: int = 10
    curvature: float = 1.0
    """The largest a; they fall to a tenth of it."""
    noise: float = 1.0
    """Standard deviation of the samples around 0."""
    num_samples: int = 1000
    model_name: Literal["point"] = "point"
    models: ClassVar = ("point",)
    defaults: ClassVar = Defaults(lr=0.1, target_loss=2.1)

    def __post_init__(self) -> None:
        positive(dimensions=self.dimensions, curvature=self.curvature, num_samples=self.num_samples)
        not_negative(noise=self.noise)
        if self.dimensions * self.num_samples * 4 > _MOST_BYTES:
            raise InputError(
                f"num_samples is {self.num_samples} and dimensions is {self.dimensions}, together over "
                f"{_MOST_BYTES >> 30} GiB; use fewer"
            )

    @cached_property
    def curvatures(self) -> Tensor:
        """a, one for each dimension."""
        return self.curvature * torch.logspace(0, -1, self.dimensions)

    def model(self) -> nn.Module:
        return Point(torch.ones(self.dimensions))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (0.5 * outputs.square() @ self.curvatures.to(outputs.device)).mean()

    def num_right(self, outputs: Tensor, targets: Tensor) -> None:
        return None

    def train_samples(self) -> Samples:
        return self._samples

    def test_samples(self) -> Samples:
        return self._samples

    @cached_property
    def _samples(self) -> TensorSamples:
        generator = torch.Generator().manual_seed(0)
        with enough_memory(f"{self.num_samples} samples of {self.dimensions} dimensions"):
            inputs = self.noise * torch.randn(self.num_samples, self.dimensions, generator=generator)
            # Centred, so that the minimum is at 0 exactly.
            return TensorSamples(inputs - inputs.mean(0), torch.zeros(self.num_samples))
