"""What ranks tell each other between loops: sums of metrics, lists of results, or only that they are there.

Numbers, tensors, and dicts and lists of them travel through the store: plain values as JSON, tensors as safetensors.
Nothing is ever unpickled. All ranks have to call the same methods in the same order; one that does something else is
named, on all of them.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load, save
from torch import Tensor

from ownpace.core.contract.errors import InputError, unknown
from ownpace.engines.process.run.joining import LoopRun

Operation = Literal["mean", "sum", "max", "min"]
_PLAIN = (str, int, float, bool, type(None))
_TENSOR = "tensor"


class BetweenRanks:
    """The calls that all ranks make together."""

    def __init__(self, run: LoopRun, rank: int, num_ranks: int) -> None:
        self._run = run
        self._rank = rank
        self._num_ranks = num_ranks
        self._calls = 0
        self._written: list[str] = []

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self._together("fleet.barrier")

    def gather(self, value: Any, what: str = "fleet.gather") -> list[Any]:
        """The values of all ranks, by rank."""
        self._refuse_elsewhere(what)
        mine = Packed()
        text = mine.text(value)
        if self._num_ranks == 1:
            return [unpack(text, mine.devices)]
        self._calls += 1
        key = f"call/{self._calls}"
        self._run.store.set(f"{key}/{self._rank}", text)
        # All have written when all are here: nothing below has to be waited for.
        self._together(what)
        self._forget()
        self._written.append(f"{key}/{self._rank}")
        # The own value, too: a tensor of this rank's is then as independent of it as those of the others.
        return [unpack(self._run.store.get(f"{key}/{rank}"), mine.devices) for rank in range(self._num_ranks)]

    def reduce(self, value: Any, op: Operation) -> Any:
        """The mean, sum, largest or smallest over all ranks, of numbers and tensors; in dicts and lists, of each."""
        if op not in get_args(Operation):
            raise unknown("op", str(op), get_args(Operation))
        refuse_what_cannot_be_reduced(value, op)
        values = self.gather(value, f"fleet.reduce(op={op!r})")
        return combined(values, op)

    def _together(self, what: str) -> None:
        self._refuse_elsewhere(what)
        self._run.presence.together(what)

    def _refuse_elsewhere(self, what: str) -> None:
        if not self._run.has_met or self._run.is_over:
            raise InputError(f"{what} was called outside of `with ownpace.join(…) as fleet:`; call it inside")
        if self._run.is_open and self._run.loop.is_running:
            raise InputError(
                f"{what} was called within a loop over fleet.batches, where each rank is at another batch; call it "
                "between loops or after them"
            )

    def _forget(self) -> None:
        # What was written for the call before: that all ranks have come here means that all have read it.
        while self._written:
            self._run.store.delete_key(self._written.pop())


class Packed:
    """Tensors that are taken out of a value, each for a number in its place."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self.devices: dict[str, torch.device] = {}
        """Where each was."""

    def text(self, value: Any) -> str:
        """The value as it travels."""
        packed = self._pack(value)
        return json.dumps({"value": packed, "tensors": base64.b64encode(save(self._tensors)).decode()})

    def _pack(self, value: Any) -> Any:
        """The value as JSON can hold it."""
        if isinstance(value, Tensor):
            name = str(len(self._tensors))
            self.devices[name] = value.device
            # A copy: two names of one storage, or a view, are not what safetensors takes.
            self._tensors[name] = value.detach().to("cpu", copy=True).contiguous()
            return {_TENSOR: name}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise InputError(f"a dict with the keys {list(value)[:5]} cannot be sent; keys must be strings")
            return {"dict": {key: self._pack(each) for key, each in value.items()}}
        if isinstance(value, list | tuple):
            return {"list": [self._pack(each) for each in value]}
        if isinstance(value, _PLAIN):
            return value
        raise InputError(
            f"a {type(value).__name__} cannot be sent to other ranks; give numbers, strings, tensors, or dicts and "
            "lists of them"
        )


def unpack(text: str | bytes, devices: Mapping[str, torch.device]) -> Any:
    """The value that a rank sent, its tensors on these devices, or on the CPU."""
    record = json.loads(text)
    tensors = load(base64.b64decode(record["tensors"]))

    def restore(packed: Any) -> Any:
        if not isinstance(packed, dict):
            return packed
        ((kind, inside),) = packed.items()
        if kind == _TENSOR:
            return tensors[inside].to(devices.get(inside, "cpu"))
        if kind == "list":
            return [restore(each) for each in inside]
        return {key: restore(each) for key, each in inside.items()}

    return restore(record["value"])


def refuse_what_cannot_be_reduced(value: Any, op: Operation) -> None:
    """Raise if a value has parts that are neither numbers nor tensors."""
    if isinstance(value, Mapping):
        for each in value.values():
            refuse_what_cannot_be_reduced(each, op)
    elif isinstance(value, list | tuple):
        for each in value:
            refuse_what_cannot_be_reduced(each, op)
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
