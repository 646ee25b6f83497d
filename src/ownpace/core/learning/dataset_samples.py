"""Data as tasks may give it, and as engines take it: torch's data sets and pairs of tensors are samples, too."""

from __future__ import annotations

from typing import Protocol, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ownpace.core.contract.errors import InputError, shown
from ownpace.core.learning.samples import Samples, TensorSamples

Data = Samples | Dataset[object] | tuple[Tensor, Tensor]
"""What a task may give: samples, a map-style data set of inputs and targets, or all of both."""


class _MapStyle(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object: ...


def as_samples(data: object, what: str = "the data") -> Samples:
    """The same as samples; `what` it is, is for errors.

    Raises:
        InputError: It cannot be counted or picked from.

    >>> as_samples(TensorDataset(torch.eye(3), torch.arange(3))).pick(torch.tensor([2]))
    (tensor([[0., 0., 1.]]), tensor([2]))
    """
    if _are_samples(data):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, Tensor) for each in data):
        inputs, targets = data
        if len(inputs) != len(targets):
            raise InputError(f"{what} has {len(inputs)} inputs and {len(targets)} targets; give a target to each")
        return TensorSamples(inputs, targets)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InputError(
            f"{what} is {shown(data)}; give ownpace.TensorSamples(inputs, targets), or a torch Dataset that has a "
            "length and an item for each index"
        )
    return DatasetSamples(data)


class _HasSamples(Protocol):
    """A task, as far as it matters here."""

    def train_samples(self) -> Data: ...

    def test_samples(self) -> Data: ...


def samples_to_learn(task: _HasSamples) -> Samples:
    """A task's samples to learn from."""
    return as_samples(task.train_samples(), "train_samples()")


def samples_to_test(task: _HasSamples) -> Samples:
    """A task's samples to be tested with."""
    return as_samples(task.test_samples(), "test_samples()")


def _are_samples(data: object) -> TypeGuard[Samples]:
    return callable(getattr(data, "pick", None)) and callable(getattr(data, "to", None))


class DatasetSamples:
    """A map-style data set of torch's, whose items are an input and a target each."""

    def __init__(self, dataset: _MapStyle, device: torch.device | None = None) -> None:
        self._dataset = dataset
        self._device = device

    def __len__(self) -> int:
        return len(self._dataset)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, as torch's DataLoader would collate them."""
        numbers = indices.tolist()
        at_once = getattr(self._dataset, "__getitems__", None)  # as the DataLoader asks for it
        items = [self._dataset[number] for number in numbers] if at_once is None else at_once(numbers)
        batch = default_collate(items)
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)):
            raise InputError(
                f"an item of the data set is {shown(items[0])}; it must be a pair of an input and a target, each a "
                "tensor or a number"
            )
        inputs, targets = batch
        return (inputs, targets) if self._device is None else (inputs.to(self._device), targets.to(self._device))

    def to(self, device: torch.device) -> DatasetSamples:
        """The same samples, handed out on another device."""
        return DatasetSamples(self._dataset, device)
