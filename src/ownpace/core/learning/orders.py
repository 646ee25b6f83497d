"""Orders of samples: what is at which place. Workers that take places from one count agree on what they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ownpace.core.learning.claims import ENDLESS
from ownpace.core.learning.sampling import Permutations
from ownpace.core.learning.seeds import Purpose, seed_for


class Order(Protocol):
    """What is at which place: indices into a data set, or samples themselves."""

    def at(self, start: int, count: int) -> Sequence[object]:
        """What is at places start … start + count − 1; fewer where the order ends, none beyond."""


class InOrder:
    """As the data comes, again and again."""

    def __init__(self, size: int) -> None:
        self._size = size

    def at(self, start: int, count: int) -> list[int]:
        return [place % self._size for place in range(start, start + count)]


class Shuffled:
    """Every sample once an epoch, each epoch a permutation of its own."""

    def __init__(self, size: int, *seed: int) -> None:
        self._permutations = Permutations(size, *seed)

    def at(self, start: int, count: int) -> list[int]:
        indices: list[int] = self._permutations.indices(start, count).tolist() if count else []
        return indices


class WithReplacement:
    """Uniform draws. What is drawn depends on the places taken alone, so that nothing else needs to be kept of it."""

    def __init__(self, size: int, *seed: int) -> None:
        self._size = size
        self._seed = seed

    def at(self, start: int, count: int) -> list[int]:
        seed, *more = self._seed
        generator = torch.Generator().manual_seed(seed_for(seed, Purpose.LOOP_IID, *more, start))
        indices: list[int] = torch.randint(self._size, (count,), generator=generator).tolist()
        return indices


class Share:
    """One worker's own part. Its places are a range of all places, so that claims tell whose they were."""

    def __init__(self, start: int, stop: int, order: Order) -> None:
        self.start = start
        self.stop = stop
        self._order = order

    def at(self, start: int, count: int) -> Sequence[object]:
        return self._order.at(start - self.start, count)


class Shares(Share):
    """The parts of all workers side by side: what one of them leaves, others may take. `own` is whose range it is."""

    def __init__(self, parts: Sequence[Share], own: int) -> None:
        super().__init__(parts[own].start, parts[own].stop, parts[own])
        self._parts = parts
        self.end = parts[-1].stop
        """The place after the last of all."""

    def at(self, start: int, count: int) -> list[object]:
        found: list[object] = []
        for part in self._parts:
            first, stop = max(start, part.start), min(start + count, part.stop)
            if first < stop:
                found += part.at(first, stop - first)
        return found


class _Picked:
    """Some samples of a data set, in an order of their own."""

    def __init__(self, indices: Tensor, order: InOrder | Shuffled) -> None:
        self._indices = indices
        self._order = order

    def at(self, start: int, count: int) -> list[int]:
        indices: list[int] = self._indices[self._order.at(start, count)].tolist()
        return indices


def shares_of_data(
    size: int, epochs: int | None, member: tuple[int, int], seeds: tuple[int, int], *, shuffle: bool
) -> Shares:
    """The parts of a data set of that size, one for each worker; `seeds` are the run's and the loop's."""
    (own, num_workers), (seed, number) = member, seeds
    # A permutation is divided, not the data as it comes: files are often sorted by class.
    everything = Permutations(size, seed, Purpose.SHARDS).indices(0, size) if shuffle else torch.arange(size)
    # Without end: room enough for each, unless there is nothing in it.
    each = ENDLESS // (num_workers * size) if epochs is None else epochs
    parts, start = [], 0
    for rank, share in enumerate(everything.tensor_split(num_workers)):
        some = max(1, len(share))
        order = Shuffled(some, seed, Purpose.LOOP_SHARD_ORDER, number, rank) if shuffle else InOrder(some)
        parts.append(Share(start, start + each * len(share), _Picked(share, order)))
        start += each * len(share)
    return Shares(parts, own)


def share_of_stream(order: Order, rank: int, num_workers: int) -> Share:
    """A stream that is one worker's own."""
    width = ENDLESS // num_workers
    return Share(rank * width, (rank + 1) * width, order)
