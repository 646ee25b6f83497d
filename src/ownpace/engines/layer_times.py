"""When each layer of a gradient is needed and ready, as both engines reckon it."""

from __future__ import annotations

from functools import cache, cached_property
from itertools import accumulate

from ownpace.core.contract.values import Shard
from ownpace.core.learning.layer_work import FORWARD_SHARE, LayerBucket, layer_buckets, work_shares
from ownpace.core.learning.layout import Layout
from ownpace.core.learning.task import Task


class LayerTimes:
    """The buckets of a model's layers, and their shares of the time of a gradient."""

    def __init__(self, task: Task, layout: Layout) -> None:
        self._task = task
        self._layout = layout
        self.buckets = cache(self._buckets)
        """Of a shard, the lowest layers first."""

    def _buckets(self, shard: Shard) -> tuple[LayerBucket, ...]:
        return layer_buckets(self._layout, shard)

    # On first use: it takes a forward pass.
    @cached_property
    def _before(self) -> list[float]:
        """Of each layer, the work of those before it; and at the end, of all."""
        return [0.0, *accumulate(work_shares(self._task, self._layout))]

    def forward(self, bucket: LayerBucket) -> float:
        """The share of a gradient's time in which the forward pass goes through these layers."""
        return FORWARD_SHARE * (self._before[bucket.layers.stop] - self._before[bucket.layers.start])

    def backward_done(self, bucket: LayerBucket) -> float:
        """The share of the backward pass after which these layers have their gradients."""
        # Exactly 1 for the lowest layers, whatever the rounding of the sum: they are ready with the gradient.
        return 1.0 if bucket.layers.start == 0 else 1 - self._before[bucket.layers.start] / self._before[-1]


__all__ = ["LayerTimes"]
