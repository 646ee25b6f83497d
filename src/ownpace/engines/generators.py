"""Torch's global generators, which dropout draws from: as they are, and set back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_states(device: torch.device) -> list[Tensor]:
    """As they are: the CPU's, and that of this device, if it is a GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generators(states: Sequence[Tensor], device: torch.device) -> None:
    """Set them back. A GPU that was not there before keeps its own."""
    if states:
        torch.set_rng_state(states[0])
    if len(states) > 1 and device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
