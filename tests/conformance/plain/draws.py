"""Who gets which samples: the one thing, with the data, that the references share with the package."""

from __future__ import annotations

from tests.conformance.plain.model import INPUTS
from tests.conformance.plain.setting import Setting
from torch import Tensor

from ownpace.core.learning.sampling import Permutations, make_sampler


class Draws:
    """Consecutive chunks of the one shared order of samples."""

    def __init__(self, seed: int) -> None:
        self._order = Permutations(len(INPUTS), seed, 0)
        self._taken = 0

    def take(self, count: int) -> Tensor:
        chosen = self._order.indices(self._taken, count)
        self._taken += count
        return INPUTS[chosen]


class OwnData:
    """Every worker's own share of the samples: what it gets next does not depend on the others' timing."""

    def __init__(self, setting: Setting) -> None:
        self._sampler = make_sampler("shards", len(INPUTS), setting.num_workers, setting.seed)

    def take(self, rank: int, count: int) -> Tensor:
        return INPUTS[self._sampler.draw(rank, count)]
