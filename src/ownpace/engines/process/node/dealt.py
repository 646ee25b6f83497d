"""The queue of samples in one generation of a run: what earlier ones have left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.learning.claims import ENDLESS, Places, within
from ownpace.core.learning.sampling import Permutations, Take
from ownpace.core.learning.seeds import Purpose

EVERYTHING: tuple[Places, ...] = ((0, ENDLESS),)


class DealtQueue:
    """Deals the places of one endless order that are left, in their order, through a count that all workers share."""

    def __init__(self, size: int, seed: int, left: Sequence[Places], take: Take) -> None:
        self._order = Permutations(size, seed, Purpose.QUEUE)
        self._left = left
        self._take = take

    def draw(self, rank: int, samples: int) -> Tensor:
        start = self._take(samples)
        places = within(self._left, start, start + samples)
        parts = [self._order.indices(first, stop - first) for first, stop in places]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass
