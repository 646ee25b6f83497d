"""What a Trainer's checkpoint folder has besides the Trainer's own files: how far the fleet is, and what is left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ownpace.core.contract.errors import InputError
from ownpace.drop_in.files import read, write

_NAME = "ownpace.safetensors"


@dataclass(frozen=True)
class SavedFleet:
    """A fleet at a checkpoint."""

    state: Mapping[str, Any]
    """Without models, optimizers and schedules, which the Trainer saves."""
    epoch: int
    """The Trainer's number of the epoch to go on with: a loop whose last sample is learnt may not have ended yet."""
    passes: float
    """Over the data, as the Trainer counts them."""


def write_fleet(folder: str | os.PathLike[str], saved: SavedFleet) -> None:
    """Add it to a checkpoint."""
    write({"fleet": saved.state, "epoch": saved.epoch, "passes": saved.passes}, Path(folder) / _NAME)


def read_fleet(folder: str | os.PathLike[str]) -> SavedFleet | None:
    """What a checkpoint has of a fleet; None: it was made without one.

    Raises:
        InputError: The file is there, but it is not one of ours.
    """
    path = Path(folder) / _NAME
    if not path.is_file():
        return None
    match read(path):
        case {"fleet": dict(state), "epoch": int(epoch), "passes": float(passes)}:
            return SavedFleet(state, epoch, passes)
    raise InputError(f"{path} is not of a checkpoint of the Trainer; delete it to begin the epoch anew")
