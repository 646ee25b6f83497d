"""The batches that a user's loop goes through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ownpace.core.learning.sampling import Sampling
from ownpace.drop_in.loops import Loops


class Batches:
    """What `fleet.batches` returns: each iteration over it is a loop of the whole fleet, begun by its first `next`."""

    def __init__(
        self,
        loops: Loops,
        dataset: Any,
        batch_size: int,
        epochs: int,
        updates: int | None,
        sampling: Sampling,
        loader: dict[str, Any],
    ) -> None:
        self._loops = loops
        self.dataset = dataset
        self._batch_size = batch_size
        self._epochs = epochs
        self._updates = updates
        self._sampling = sampling
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        source = self._loops.begin(self._batch_size, len(self.dataset), self._epochs, self._sampling, self._updates)
        finished = False
        try:
            for batch in DataLoader(self.dataset, batch_sampler=source, **self._loader):
                # A DataLoader with workers draws batches ahead; they come out in the order of drawing, as do sizes.
                if not self._loops.hand_out(source.sizes.pop(0)):
                    break  # the run was stopped
                yield batch
            finished = True
        finally:
            # Also after a `break`: the others must not wait in a sum for this worker.
            self._loops.end(stop=not finished)
