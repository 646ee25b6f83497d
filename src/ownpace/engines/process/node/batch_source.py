"""Which samples a user's loop gets next: a batch sampler for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ownpace.core.learning.sampling import Permutations, Sampling, Take
from ownpace.core.learning.seeds import Purpose, seed_for


class BatchSource:
    """Draws as many samples for each batch as the algorithm wants, until no data is left."""

    def __init__(
        self,
        wanted_samples: Callable[[], int],
        take: Take,
        member: tuple[int, int],
        size: int,
        epochs: int,
        sampling: Sampling,
        seeds: tuple[int, int],
    ) -> None:
        """A source for one loop over the data.

        Args:
            wanted_samples: How many samples the algorithm wants next.
            take: Takes places in the queue that all workers share.
            member: This worker's rank, and how many there are.
            size: Of the data set.
            epochs: How often to go through it.
            sampling: Which worker gets which samples.
            seeds: The run's, and the number of this loop.
        """
        (rank, num_workers), (seed, number) = member, seeds
        self._wanted_samples = wanted_samples
        self._take = take
        self._size = size
        self._epochs = epochs
        self._total = epochs * size
        self.sizes: list[int] = []
        """Of the batches that were drawn and not handed out yet."""
        self._draw = self._from_queue
        self._order = Permutations(size, seed, Purpose.LOOP_QUEUE, number)
        if sampling == "iid":
            self._generator = torch.Generator().manual_seed(seed_for(seed, Purpose.LOOP_IID, number, rank))
            self._draw = self._with_replacement
        elif sampling == "shards":
            everything = Permutations(size, seed, Purpose.SHARDS).indices(0, size)
            self._shard = everything.tensor_split(num_workers)[rank]
            self._order = Permutations(max(1, len(self._shard)), seed, Purpose.LOOP_SHARD_ORDER, number, rank)
            self._drawn = 0
            self._draw = self._from_shard

    def __iter__(self) -> Iterator[list[int]]:
        while indices := self._draw(max(1, self._wanted_samples())):
            self.sizes.append(len(indices))
            yield indices

    def _from_queue(self, samples: int) -> list[int]:
        # Beyond the end, the shared count goes on rising: that is how every worker finds out that nothing is left.
        start = min(self._take(samples), self._total)
        return self._order.indices(start, min(samples, self._total - start)).tolist() if start < self._total else []

    def _with_replacement(self, samples: int) -> list[int]:
        left = self._total - min(self._take(samples), self._total)
        return torch.randint(self._size, (min(samples, left),), generator=self._generator).tolist()

    def _from_shard(self, samples: int) -> list[int]:
        samples = min(samples, self._epochs * len(self._shard) - self._drawn)
        if samples <= 0:
            return []
        start, self._drawn = self._drawn, self._drawn + samples
        indices: list[int] = self._shard[self._order.indices(start, samples)].tolist()
        return indices
