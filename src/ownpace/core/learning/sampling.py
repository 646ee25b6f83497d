"""Which samples a worker gets next.

queue    every sample exactly once per epoch, at any pace: workers take chunks of one shared permutation
iid      with replacement, from the whole data set, each worker from its own generator
shards   each worker draws from its own fixed share, as in older papers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from ownpace.core.learning.seeds import Purpose, derive, seed_for

Sampling = Literal["queue", "iid", "shards"]
Take = Callable[[int], int]
"""Takes this many places in a queue, and returns the first."""


class Sampler(Protocol):
    """Hands out indices into the training data."""

    def draw(self, rank: int, samples: int) -> Tensor:
        """The next `samples` indices for the worker of that rank."""

    def assign(self, rank: int, start: float, stop: float) -> None:
        """Let that worker draw from this range of the data (0 to 1) from now on, if each has a range of its own."""


def make_sampler(kind: Sampling, size: int, num_workers: int, seed: int, take: Take | None = None) -> Sampler:
    """The sampler of that kind over `size` samples. Several processes share a queue through `take`."""
    assert kind in get_args(Sampling), kind
    if kind == "queue":
        return Queue(size, seed, take)
    if kind == "iid":
        return Independent(size, num_workers, seed)
    return Shards(size, num_workers, seed)


class Permutations:
    """An endless order of samples: epoch after epoch, each a fresh permutation. Any position can be asked for."""

    def __init__(self, size: int, *seed: int) -> None:
        self.size = size
        self._seed = seed
        self._epochs: dict[int, Tensor] = {}

    def indices(self, start: int, samples: int) -> Tensor:
        """The samples at positions start … start + samples − 1."""
        parts = []
        while samples > 0:
            epoch, offset = divmod(start, self.size)
            part = self._epoch(epoch)[offset : offset + samples]
            parts.append(part)
            start += len(part)
            samples -= len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs.pop(epoch - 2, None)  # a draw may still reach back into the last epoch, but no further
            generator = torch.Generator().manual_seed(derive(*self._seed, epoch))
            self._epochs[epoch] = torch.randperm(self.size, generator=generator)
        return self._epochs[epoch]


class Queue:
    """One permutation and one counter for all."""

    def __init__(self, size: int, seed: int, take: Take | None = None) -> None:
        self._order = Permutations(size, seed, Purpose.QUEUE)
        self._next = 0
        self._take = take or self._count

    def draw(self, rank: int, samples: int) -> Tensor:
        return self._order.indices(self._take(samples), samples)

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass

    def _count(self, samples: int) -> int:
        start, self._next = self._next, self._next + samples
        return start


class Independent:
    """Uniform draws with replacement."""

    def __init__(self, size: int, num_workers: int, seed: int) -> None:
        self._size = size
        self._generators = [
            torch.Generator().manual_seed(seed_for(seed, Purpose.IID, rank)) for rank in range(num_workers)
        ]

    def draw(self, rank: int, samples: int) -> Tensor:
        return torch.randint(self._size, (samples,), generator=self._generators[rank])

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass


class Shards:
    """Fixed shares, equal unless assigned otherwise; each worker permutes its own, epoch after epoch of its own."""

    def __init__(self, size: int, num_workers: int, seed: int) -> None:
        # A permutation is divided, not the data as it comes: files are often sorted by class.
        self._everything = Permutations(size, seed, Purpose.SHARDS).indices(0, size)
        self._seed = seed
        self._shares = [share.clone() for share in self._everything.tensor_split(num_workers)]
        self._orders = [
            Permutations(len(share), seed, Purpose.SHARD_ORDER, rank) for rank, share in enumerate(self._shares)
        ]
        self._next = [0] * num_workers

    def draw(self, rank: int, samples: int) -> Tensor:
        start, self._next[rank] = self._next[rank], self._next[rank] + samples
        return self._shares[rank][self._orders[rank].indices(start, samples)]

    def assign(self, rank: int, start: float, stop: float) -> None:
        size = len(self._everything)
        first = min(round(start * size), size - 1)
        # At least one sample: from an empty range nothing could be drawn.
        self._shares[rank] = self._everything[first : max(first + 1, round(stop * size))].clone()
        self._orders[rank] = Permutations(len(self._shares[rank]), self._seed, Purpose.SHARD_ORDER, rank)
        self._next[rank] = 0
