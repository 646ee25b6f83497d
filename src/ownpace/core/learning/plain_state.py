"""A run's state as plain data, so that reading one from a file runs nobody's code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError

PlainState = Mapping[str, object]
"""Names, and for each a number, a string, a truth value, None, a tensor, or mappings and sequences of these."""

_TENSOR, _LIST, _TUPLE, _PAIRS, _FLOAT = "tensor:", "list:", "tuple:", "pairs:", "float:"
"""What stands for a value that JSON does not have: a list whose first entry is one of these."""


class Outline:
    """Takes tensors out of a state, and leaves what JSON can hold, with a name for each tensor."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def of(self, value: object, where: str = "") -> object:
        """The same value as JSON can hold it.

        Raises:
            InputError: Something in it is neither a plain value nor a tensor.
        """
        match value:
            case Tensor():
                return [_TENSOR, self._name(value, where)]
            case float() if not math.isfinite(value):
                return [_FLOAT, str(float(value))]  # JSON has no word for it
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                kind = _LIST if isinstance(value, list) else _TUPLE
                return [kind, *(self.of(each, f"{where}/{place}") for place, each in enumerate(value))]
            case Mapping():
                pairs = ([self.of(key, where), self.of(each, f"{where}/{key}")] for key, each in value.items())
                return [_PAIRS, *pairs]
        raise InputError(
            f"{where.lstrip('/') or 'the checkpoint'} is a {type(value).__name__}, which a checkpoint cannot hold; "
            "use tensors, numbers, strings, lists, tuples and dictionaries"
        )

    def _name(self, tensor: Tensor, where: str) -> str:
        # By identity, which lasts as long as the state does: what many hold is written once.
        name = self._names.setdefault(id(tensor), f"{len(self.tensors)}{where}")
        self.tensors.setdefault(name, tensor.detach())
        return name


class Filling:
    """Puts tensors back into an outline."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._used: set[str] = set()

    def of(self, outline: object) -> object:
        """The value that the outline was made of.

        Raises:
            ValueError: It is not an outline of these tensors. KeyError and TypeError say the same.
        """
        if not isinstance(outline, list):
            if isinstance(outline, dict):
                raise ValueError("an outline has no objects")
            return outline
        kind, *rest = outline
        if kind == _TENSOR:
            return self._tensor(rest[0])
        if kind == _FLOAT:
            return float(rest[0])
        if kind == _PAIRS:
            return {self.of(key): self.of(each) for key, each in rest}
        if kind not in (_LIST, _TUPLE):
            raise ValueError(f"an outline has no {kind!r}")
        values: Sequence[object] = [self.of(each) for each in rest]
        return tuple(values) if kind == _TUPLE else values

    def _tensor(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        # One of its own for each who held it: a step of one must not move another's.
        if name in self._used:
            return tensor.clone()
        self._used.add(name)
        return tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of a dense tensor, on the CPU, as a vector; its own memory, where they lie there side by side.

    >>> bytes_of(torch.ones(4, dtype=torch.int16)[::11]).tolist()
    [1, 0]
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride(0) != 1:
        # To torch, a single number is contiguous whatever its stride; but not where bytes are wanted.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
