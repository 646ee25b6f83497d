"""Samples: data that can be counted and picked from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Samples(Protocol):
    """Data that can be counted and picked from by a vector of indices."""

    def __len__(self) -> int: ...

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples."""

    def to(self, device: torch.device) -> Samples:
        """The same samples, handed out on another device."""


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """Samples that fit into memory."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = indices.to(self.inputs.device)
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices)

    def to(self, device: torch.device) -> TensorSamples:
        return TensorSamples(self.inputs.to(device), self.targets.to(device))
