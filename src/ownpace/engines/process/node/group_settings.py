"""The numbers of an optimizer's parameter groups that an update uses, and that all replicas must agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor
from torch.optim import Optimizer


class GroupSettings:
    """The settings of one or several optimizers, in the order of their groups."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    @property
    def _groups(self) -> list[dict[str, object]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def read(self) -> list[float]:
        """As they are now."""
        return [float(group["lr"]) for group in self._groups]  # type: ignore[arg-type]  # a number or a tensor of one

    @contextmanager
    def applied(self, agreed: Sequence[float], lr_factor: float) -> Iterator[None]:
        """Let the groups have the settings that were agreed on (none: their own), for one step."""
        groups = self._groups
        own = [group["lr"] for group in groups]
        used: list[object] = [rate * lr_factor for rate in map(_agreed, own, agreed or own)]  # type: ignore[operator]
        if used != own:
            for group, rate in zip(groups, used, strict=True):
                group["lr"] = rate
        yield
        if used != own:
            # Restored at once: the user's scheduler computes the next rate from the one that it finds.
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate


def _agreed(own: object, of_first: object) -> object:
    """The learning rate that all ranks step with: the first one's, since schedulers may not be stepped equally often.

    Rates travel in single precision; where only that makes the difference, the own one is used.
    """
    same = isinstance(own, Tensor) or np.float32(own) == np.float32(of_first)  # type: ignore[arg-type]
    return own if same else of_first
