"""Samples that take time to load are drawn a batch ahead, so that they are loaded while another one is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.claims import Places
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.sampling import Sampler


class DrawnAhead:
    """One worker's sampler, which begins to load its next batch with every draw: one as large as this.

    What was drawn and not asked for counts as taken and not used: a queue deals it again, and the position of a worker
    that draws alone is that before it.
    """

    def __init__(self, sampler: Sampler, samples: TrainingSamples) -> None:
        self._sampler = sampler
        self._samples = samples
        self._ahead = torch.empty(0, dtype=torch.int64)
        self._position: PlainState | None = None

    def draw(self, rank: int, samples: int) -> Tensor:
        if len(self._ahead) < samples:
            more = self._sampler.draw(rank, samples - len(self._ahead))
            self._samples.start(more)
            self._ahead = torch.cat([self._ahead, more])
        drawn, rest = self._ahead[:samples], self._ahead[samples:]
        if not len(rest):  # else it is from the last draw, and what was drawn then may be too much for now
            self._position = self._sampler.position(rank)
            rest = self._sampler.draw(rank, samples)
            self._samples.start(rest)
        self._ahead = rest
        return drawn

    def assign(self, rank: int, start: float, stop: float) -> None:
        self._sampler.assign(rank, start, stop)
        # Of another range: it is drawn again, from the beginning of the new one.
        self._ahead, self._position = self._ahead[:0], None

    def left(self, used: Sequence[int]) -> list[Places]:
        return self._sampler.left(used)

    def position(self, rank: int) -> PlainState:
        return self._sampler.position(rank) if self._position is None else self._position

    def go_on(self, rank: int, position: PlainState) -> None:
        self._sampler.go_on(rank, position)
