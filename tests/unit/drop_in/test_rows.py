"""Batches of tensors, taken at once: the same as if they were put together sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.drop_in.a_fleet import AFleet
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

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
    "pictures": TensorDataset(torch.arange(720.0).reshape(20, 3, 4, 3)),
    "channels last": TensorDataset(torch.arange(720.0).reshape(20, 3, 4, 3).to(memory_format=torch.channels_last)),
    "columns": TensorDataset(X.T.contiguous().T, Y),
    "one number for all": TensorDataset(torch.zeros(1, 3).expand(20, 3)),
    "half precision": TensorDataset(X.bfloat16(), X.bool(), X.to(torch.uint16), X.to(torch.complex64)),
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
        return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()) and torch.equal(
            one, other
        )
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
    assert asked(Subset(DATA["data set"], [3, -1])) is None


def test_a_generator_of_the_scripts_is_drawn_from_as_a_loader_does():
    mine, alone = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    AFleet(4).deal(DATA["data set"], generator=mine)
    iter(DataLoader(DATA["data set"], generator=alone))
    assert torch.equal(mine.get_state(), alone.get_state())
