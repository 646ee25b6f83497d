"""An optimizer's state of one flat vector, taken apart by layers, and put together again."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.learning.layout import Layer

Entry = dict[str, object]
"""What an optimizer keeps for one parameter, by name."""


def split(entry: Entry, layers: Sequence[Layer]) -> list[Entry]:
    """The state of a vector as that of each of its layers, sharing nothing with it."""
    sizes = [layer.stop - layer.start for layer in layers]
    parts: list[Entry] = [{} for _ in layers]
    for key, value in entry.items():
        # What has a number for each parameter is divided; a count of steps, say, is the same for all layers.
        if isinstance(value, Tensor) and value.dim() == 1 and len(value) == sum(sizes):
            for part, layer, piece in zip(parts, layers, value.split_with_sizes(sizes), strict=True):
                part[key] = layer.view(piece.clone())
        else:
            for part in parts:
                part[key] = value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
    return parts


def join(parts: Sequence[Entry], layers: Sequence[Layer]) -> Entry | None:
    """The state of layers as that of one vector; None: there is no such state, since the layers' do not fit."""
    if any(part.keys() != parts[0].keys() for part in parts):
        return None
    entry: Entry = {}
    for key, first in parts[0].items():
        values = [part[key] for part in parts]
        if all(isinstance(v, Tensor) and v.shape == layer.shape for v, layer in zip(values, layers, strict=True)):
            pieces = [layer.flatten(v) for v, layer in zip(values, layers, strict=True)]  # type: ignore[arg-type]
            entry[key] = torch.cat(pieces)
        elif all(_same(value, first) for value in values):
            entry[key] = first.clone() if isinstance(first, Tensor) else first
        else:
            return None
    return entry


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
