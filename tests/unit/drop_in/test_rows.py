"""Batches of tensors, taken at once: the same as if they were put together sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.drop_in.a_fleet import AFleet
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from ownpace.drop_in.data import Asked, read_data
from ownpace.drop_in.rows import rows_of

X = torch.arange(60.0).reshape(20, 3)
Y = torch.arange(20) % 4
DATA: dict[str, Any] = {
    "data set": TensorDataset(X, Y),
    "one tensor": X,
    "numbers": Y,
    "subset": Subset(TensorDataset(X, Y), [3, 1, 19, 7, 7]),
    "subset of a tensor": Subset(X, torch.tensor([3, 1, 19])),  # type: ignore[arg-type]
}


class Single(Dataset[Any]):
    """The same data, of which nobody knows that it is tensors."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and all(map(same, one, other))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_of_a_loader(name, workers):
    data = DATA[name]
    assert rows_of(read_data(data, Asked(batch_size=4))) is not None
    (rows,) = AFleet(4).deal(data, num_workers=workers)
    (singles,) = AFleet(4).deal(Single(data))
    assert len(rows) == len(singles) > 0
    assert all(map(same, rows, singles))


def test_other_ways_to_make_a_batch_are_left_alone():
    def asked(data: Any = DATA["data set"], sampler: Any = None, **loader: Any) -> Any:
        return rows_of(read_data(data, Asked(batch_size=4, sampler=sampler, loader=loader)))

    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return (-super().__getitem__(index)[0],)

    assert asked(collate_fn=default_collate) is not None
    assert asked(collate_fn=lambda samples: samples) is None
    assert asked(sampler=[3, 1]) is None
    assert asked(Augmented(X)) is None
    assert asked(list(X)) is None
