"""torch's data sets as the data of tasks, and losses that fit what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from ownpace import InputError, Task, train
from ownpace.core.learning.dataset_samples import DatasetSamples, as_samples
from ownpace.core.learning.samples import TensorSamples
from ownpace.testing.blobs import Blobs

ALL = cast(TensorSamples, Blobs().train_samples())


class Items(Dataset[Any]):
    """As people write them: one item at a time, the target a Python number."""

    def __len__(self) -> int:
        return len(ALL)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return ALL.inputs[index], int(ALL.targets[index])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Given(Blobs):
    """Blobs whose data comes as it was given."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def train_samples(self) -> Any:
        return self.data

    def test_samples(self) -> Any:
        return self.data


@pytest.mark.parametrize(
    "data",
    [
        Items(),
        Subset(Items(), range(len(ALL))),  # which hands out several items at once
        TensorDataset(ALL.inputs, ALL.targets),
        (ALL.inputs, ALL.targets),
    ],
)
def test_a_run_on_a_data_set_is_the_same_as_on_its_tensors(data):
    same = {"fleet": "2,1", "batch_size": 8, "epochs": 1}
    expected, got = (train(task=task, **same).summary for task in (Blobs(), Given(data)))  # type: ignore[arg-type]
    assert (got.loss, got.accuracy, got.samples) == (expected.loss, expected.accuracy, expected.samples)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Stream(), r"train_samples\(\) is <.*Stream.*>; give ownpace.TensorSamples"),
        (3, r"train_samples\(\) is 3; give"),
        ((torch.zeros(3), torch.zeros(2)), "has 3 inputs and 2 targets"),
        ([(torch.zeros(2), 1, 2)] * 9, "an item of the data set is .*; it must be a pair"),
        ([{"x": torch.zeros(2)}] * 9, "an item of the data set is .*; it must be a pair"),
    ],
)
def test_data_that_cannot_be_used_is_refused_in_words(data, message):
    with pytest.raises(InputError, match=message):
        train(task=Given(data), fleet="2,1", batch_size=4, epochs=1)


def test_samples_are_handed_out_where_they_are_wanted():
    samples = as_samples(Items()).to(torch.device("meta"))
    assert isinstance(samples, DatasetSamples)
    assert {each.device.type for each in samples.pick(torch.arange(3))} == {"meta"}


class Line(Task):
    """A regression, whose loss its author has forgotten."""

    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def train_samples(self) -> tuple[Tensor, Tensor]:
        return ALL.inputs, ALL.inputs.sum(1, keepdim=True)

    def test_samples(self) -> tuple[Tensor, Tensor]:
        return self.train_samples()


class Fitted(Line):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, targets)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(4, 1), torch.zeros(4, 1)),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long)),
        (torch.zeros(4, 3), torch.zeros(4, 3)),
    ],
)
def test_cross_entropy_is_not_taken_where_it_says_nothing(outputs, targets):
    with pytest.raises(InputError, match="the task Line has no loss of its own"):
        Line().loss(outputs, targets)


def test_a_regression_is_refused_without_a_loss_and_has_no_accuracy_with_one():
    with pytest.raises(InputError, match=r"outputs are \[1\] for each sample and targets float32; write loss"):
        train(task=Line(), fleet="2,1", batch_size=8, epochs=1)
    summary = train(task=Fitted(), fleet="2,1", batch_size=8, epochs=4, lr=0.02).summary
    assert summary.accuracy is None
    assert summary.loss < 0.1
    # Pixels, too, are no samples: a share of them would be more than all.
    assert Line().num_right(torch.zeros(2, 3, 5), torch.zeros(2, 5, dtype=torch.long)) is None
