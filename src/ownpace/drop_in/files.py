"""Checkpoints as files: plain values and tensors only, so that reading one can run no code.

*.safetensors    the tensors; everything around them as JSON in the file's metadata; a checksum of all
anything else    torch.save, for torch.load(…, weights_only=True)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.plain_state import Outline
from ownpace.core.learning.state_file import read_state, write_state


def write(state: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint; the file that was there before stays until the new one is whole.

    Raises:
        InputError: It holds something that is neither a plain value nor a tensor.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        write_state(path, state)
        return
    Outline().of(state)  # for torch.save would take anything, and only torch.load refuse it
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
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
    if path.suffix == ".safetensors":
        return read_state(path).state
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}, not a checkpoint of fleet.save")
    return found
