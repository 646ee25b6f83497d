"""Values as they travel between ranks: plain ones as JSON, tensors as safetensors. Nothing is ever unpickled."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ownpace.core.contract.errors import InputError, WireError

_PLAIN = (str, int, float, bool, type(None))
_TENSOR = "tensor"


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
    """The value that a rank sent, its tensors on these devices, or on the CPU.

    Raises:
        WireError: It is none.
    """
    try:
        record = json.loads(text)
        return _restored(record["value"], load(base64.b64decode(record["tensors"])), devices)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise WireError(f"a rank sent a value that is none ({type(error).__name__}: {error!s:.80})") from None


def _restored(value: Any, tensors: Mapping[str, Tensor], devices: Mapping[str, torch.device]) -> Any:
    def restore(packed: Any) -> Any:
        if not isinstance(packed, dict):
            return packed
        ((kind, inside),) = packed.items()
        if kind == _TENSOR:
            return tensors[inside].to(devices.get(inside, "cpu"))
        if kind == "list":
            return [restore(each) for each in inside]
        return {key: restore(each) for key, each in inside.items()}

    return restore(value)
