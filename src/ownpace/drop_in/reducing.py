"""One value of those of all ranks: numbers and tensors, in dicts and lists, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError

Operation = Literal["mean", "sum", "max", "min"]


def refuse_what_cannot_be_reduced(value: Any) -> None:
    """Raise if a value has parts that are neither numbers nor tensors."""
    if isinstance(value, Mapping):
        for each in value.values():
            refuse_what_cannot_be_reduced(each)
    elif isinstance(value, list | tuple):
        for each in value:
            refuse_what_cannot_be_reduced(each)
    elif isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise InputError(
            f"fleet.reduce was given a {type(value).__name__}; it takes numbers, tensors, and dicts and lists of them; "
            "fleet.gather takes more"
        )


def combined(values: Sequence[Any], op: Operation) -> Any:
    """One value of those of all ranks, part by part; in order of rank, so that it has the same bits everywhere."""
    first = values[0]
    if isinstance(first, dict):
        _refuse_other([sorted(each) if isinstance(each, dict) else type(each).__name__ for each in values])
        return {key: combined([each[key] for each in values], op) for key in first}
    if isinstance(first, list):
        _refuse_other([len(each) if isinstance(each, list) else type(each).__name__ for each in values])
        return [combined(each, op) for each in zip(*values, strict=True)]
    if isinstance(first, Tensor):
        _refuse_other([_kind(each) for each in values])
        return _combined_tensors(values, op)
    _refuse_other(["a number" if isinstance(each, int | float) else type(each).__name__ for each in values])
    return _combined_numbers(values, op)


def _kind(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _combined_numbers(values: Sequence[int | float], op: Operation) -> int | float:
    if op in ("max", "min") and any(math.isnan(value) for value in values):
        return math.nan  # as torch does; `max` would lose it or not, by the order
    if op == "max":
        return max(values)
    if op == "min":
        return min(values)
    return sum(values) / len(values) if op == "mean" else sum(values)


def _combined_tensors(values: Sequence[Tensor], op: Operation) -> Tensor:
    stacked = torch.stack(list(values))
    if op == "mean":
        # Not of whole numbers, which have no mean of their own type.
        return (stacked if stacked.is_floating_point() or stacked.is_complex() else stacked.float()).mean(0)
    functions: dict[str, Callable[..., Tensor]] = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}
    return functions[op](stacked, dim=0).to(values[0].dtype)


def _refuse_other(kinds: Sequence[object]) -> None:
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InputError(
                f"fleet.reduce was given {kind} on rank {rank}, and {kinds[0]} on rank 0; give the same on every rank"
            )
