"""An update that is made as the layers of its sum arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ownpace.core.learning.layer_work import LayerBucket
from ownpace.core.learning.range_steps import RangeSteps


class ArrivingLayers(Protocol):
    """A sum that arrives bucket by bucket."""

    @property
    def buckets(self) -> Sequence[LayerBucket]:
        """The lowest layers' first."""

    def has_come(self, number: int) -> bool:
        """Whether one of them is there."""

    def bring(self, number: int) -> Tensor:
        """Wait for one of them: the sum there."""


class UnfinishedStep:
    """A step of which layers are still to come: each is made when it is needed, and the others at the end."""

    def __init__(self, arriving: ArrivingLayers, steps: RangeSteps, on_end: Callable[[], None]) -> None:
        self._arriving = arriving
        self._steps = steps
        self._on_end = on_end
        self._left = deque(enumerate(arriving.buckets))

    @property
    def buckets(self) -> Sequence[LayerBucket]:
        """In which it comes, the lowest layers' first."""
        return self._arriving.buckets

    def has_come(self, bucket: LayerBucket) -> bool:
        """Whether a bucket is there."""
        return self._arriving.has_come(self.buckets.index(bucket))

    @property
    def values(self) -> Tensor:
        """Where the parameters will be: what is needed is there already."""
        return self._steps.values

    def need(self, layer: int) -> None:
        """This layer and all below it are about to be used."""
        while self._left and self._left[0][1].layers.start <= layer:
            number, bucket = self._left[0]
            total = self._arriving.bring(number)  # it may raise: then this bucket is still to come
            self._left.popleft()
            self._steps.step(slice(bucket.start, bucket.stop), total)

    def finish(self) -> None:
        """Make all that is left of the step."""
        if self._left:
            self.need(self._left[-1][1].layers.stop - 1)
        on_end, self._on_end = self._on_end, _nothing
        on_end()


def _nothing() -> None:
    pass


__all__ = ["ArrivingLayers", "UnfinishedStep"]
