"""Data sets that are tensors: a batch of them is one look into each, not one for every sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from ownpace.drop_in.data import Data


class Rows(Dataset[Any]):
    """Gives whole batches, the same that torch's DataLoader makes of single samples."""

    def __init__(self, whole: TensorDataset | Tensor, indices: Tensor | None) -> None:
        self._whole = whole
        self._indices = indices

    def __getitems__(self, places: Sequence[object]) -> Any:
        """The batch of these samples; a DataLoader asks for it, where a data set has this method."""
        chosen = torch.tensor(places, dtype=torch.int64)
        if self._indices is not None:
            chosen = self._indices[chosen]
        if isinstance(self._whole, Tensor):
            return _picked(self._whole, chosen)
        return [_picked(tensor, chosen) for tensor in self._whole.tensors]

    def __getitem__(self, place: int) -> Any:
        raise AssertionError("whole batches are asked for")


def _picked(tensor: Tensor, chosen: Tensor) -> Tensor:
    # Not by indexing, which keeps another order in memory where the data has one: putting samples together does not.
    return tensor.index_select(0, chosen.to(tensor.device))


def rows_of(data: Data) -> Rows | None:
    """The same data as rows of tensors; None: it is something else, or batches are put together in another way."""
    collate = data.loader.get("collate_fn", default_collate)
    if collate is not default_collate or data.sampler is not None or "worker_init_fn" in data.loader:
        return None
    whole: Any = data.dataset
    indices = None
    if type(whole) is Subset:
        indices = torch.tensor([*whole.indices], dtype=torch.int64)
        whole = whole.dataset
        if (indices < 0).any():  # from the end
            return None
    if type(whole) is TensorDataset or (type(whole) is Tensor and whole.layout is torch.strided):
        return Rows(whole, indices)
    return None
