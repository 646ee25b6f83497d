"""Checkpoints as files: plain values and tensors only, so that reading one can run no code.

*.safetensors    the tensors; everything around them as JSON in the file's metadata
anything else    torch.save, for torch.load(…, weights_only=True)
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ownpace.core.contract.errors import InputError

_TENSOR, _TUPLE, _PAIRS = "tensor:", "tuple:", "pairs:"
"""What stands for a value that JSON does not have: a list whose first entry is one of these."""
_KEY = "ownpace"


def write(state: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint; the file that was there before stays until the new one is whole.

    Raises:
        InputError: It holds something that is neither a plain value nor a tensor.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    outline = _outline(state, "", tensors)
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        if path.suffix == ".safetensors":
            # Each in memory of its own: safetensors refuses tensors that share theirs.
            save_file({key: value.clone() for key, value in tensors.items()}, part, {_KEY: json.dumps(outline)})
        else:
            torch.save(state, part)
        _flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    # Before it takes the place of the old one: after a power cut, one of the two must be whole.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read a checkpoint, its tensors on the CPU.

    Raises:
        InputError: There is no such file, or it is none of ours.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}; fleet.save(path) writes one")
    try:
        found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}, not a checkpoint of fleet.save")
    return found


def _read_torch(path: Path) -> object:
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> object:
    with safe_open(path, "pt") as file:
        outline = (file.metadata() or {}).get(_KEY)
        if outline is None:
            raise InputError(f"{path} holds tensors alone, not a checkpoint of fleet.save")
        return _filled(json.loads(outline), {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118


def _outline(value: object, where: str, tensors: dict[str, Tensor]) -> object:
    """The same value with tensors replaced by their names, in what JSON can hold."""
    match value:
        case Tensor():
            name = f"{len(tensors)}{where}"
            tensors[name] = value.detach()
            return [_TENSOR, name]
        case None | bool() | int() | float() | str():
            return value
        case list():
            return ["list:", *(_outline(each, f"{where}/{place}", tensors) for place, each in enumerate(value))]
        case tuple():
            return [_TUPLE, *(_outline(each, f"{where}/{place}", tensors) for place, each in enumerate(value))]
        case Mapping():
            pairs = [[_outline(key, where, tensors), _outline(each, f"{where}/{key}", tensors)]
                     for key, each in value.items()]  # fmt: skip
            return [_PAIRS, *pairs]
    raise InputError(
        f"{where.lstrip('/') or 'the checkpoint'} is a {type(value).__name__}, which a checkpoint cannot hold; "
        "use tensors, numbers, strings, lists, tuples and dictionaries"
    )


def _filled(outline: object, tensors: Mapping[str, Tensor]) -> object:
    if not isinstance(outline, list):
        return outline
    kind, *rest = outline
    if kind == _TENSOR:
        return tensors[rest[0]]
    if kind == _PAIRS:
        return {_filled(key, tensors): _filled(each, tensors) for key, each in rest}
    values = [_filled(each, tensors) for each in rest]
    return tuple(values) if kind == _TUPLE else values
