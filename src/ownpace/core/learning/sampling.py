"""Which samples a worker gets next.

queue    every sample exactly once per epoch, at any pace: workers take chunks of one shared permutation
iid      with replacement, from the whole data set, each worker from its own generator
shards   each worker draws from its own fixed share, as in older papers

Where samples are changed at random for training, what is drawn also says which visit to the sample it is: index +
visit × size. So the change is a function of the run's seed and of that number alone, whoever draws it and whenever.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, get_args

import torch
from torch import Tensor

from ownpace.core.choices import Sampling
from ownpace.core.learning.claims import ENDLESS, Claim, Places, left_of, number_of, within
from ownpace.core.learning.plain_state import PlainState
from ownpace.core.learning.seeds import Purpose, derive, seed_for

Take = Callable[[int], int]
"""Takes this many places in a queue, and returns the first."""
_MOST_VISITS = 1 << 31
"""Of one worker that draws with replacement: then its count begins again, or the product would not fit 64 bits."""


class Sampler(Protocol):
    """Hands out indices into the training data."""

    def draw(self, rank: int, samples: int) -> Tensor:
        """The next `samples` indices for the worker of that rank; with visits, if those were asked for."""

    def assign(self, rank: int, start: float, stop: float) -> None:
        """Let that worker draw from this range of the data (0 to 1) from now on, if each has a range of its own."""

    def left(self, used: Sequence[int]) -> list[Places]:
        """The places of the shared order that are left, where there is one.

        Args:
            used: Of each rank, how many of the samples that it drew are used up; they are the first ones.
        """

    def position(self, rank: int) -> PlainState:
        """Where that worker is in what it draws alone."""

    def go_on(self, rank: int, position: PlainState) -> None:
        """Let that worker go on from such a position."""


def make_sampler(
    kind: Sampling,
    size: int,
    num_workers: int,
    seed: int,
    take: Take | None = None,
    *,
    numbers: Sequence[int] | None = None,
    left: Sequence[Places] = (),
    visits: bool = False,
) -> Sampler:
    """The sampler of that kind over `size` samples.

    Args:
        kind: Which one.
        size: Of the training data.
        num_workers: How many draw.
        seed: The run's.
        take: How several processes share a queue.
        numbers: Of each rank, the worker's number in the fleet, which its generator is made from (None: its rank).
        left: The places of the shared order that are dealt (none: all, from the first on).
        visits: Whether what is drawn also says which visit to the sample it is.
    """
    assert kind in get_args(Sampling), kind
    if kind == "queue":
        return Queue(size, seed, take, left, visits=visits)
    if kind == "iid":
        return Independent(size, numbers or range(num_workers), seed, visits=visits)
    return Shards(size, num_workers, seed, visits=visits)


class Permutations:
    """An endless order of samples: epoch after epoch, each a fresh permutation. Any position can be asked for."""

    def __init__(self, size: int, *seed: int, visits: bool = False) -> None:
        self.size = size
        self._seed = seed
        self._visits = visits
        self._epochs: dict[int, Tensor] = {}

    def indices(self, start: int, samples: int) -> Tensor:
        """The samples at positions start … start + samples − 1."""
        epoch, offset = divmod(start, self.size)
        if offset + samples <= self.size:  # nearly always: no epoch ends in between
            return self._epoch(epoch)[offset : offset + samples]
        first = self._epoch(epoch)[offset:]
        return torch.cat([first, self.indices(start + len(first), samples - len(first))])

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs.pop(epoch - 2, None)  # a draw may still reach back into the last epoch, but no further
            generator = torch.Generator().manual_seed(derive(*self._seed, epoch))
            order = torch.randperm(self.size, generator=generator)
            self._epochs[epoch] = order.add_(epoch * self.size) if self._visits else order
        return self._epochs[epoch]


class Queue:
    """One permutation and one counter for all.

    It deals the places that are left of an endless order: all of them, or after a failure first those that were taken
    and not learnt from, then the rest.
    """

    def __init__(
        self, size: int, seed: int, take: Take | None = None, left: Sequence[Places] = (), *, visits: bool = False
    ) -> None:
        self._order = Permutations(size, seed, Purpose.QUEUE, visits=visits)
        self._dealt = list(left) or [(0, ENDLESS)]
        # Behind these, places follow each other without a gap.
        self._num_scattered = number_of(self._dealt[:-1])
        self._next = 0
        self._take = take or self._count
        # Start, samples and rank of each draw, one after the other: a long run has millions of them. Where several
        # processes share the count, whoever keeps it knows them.
        self._claims = array("q")
        self._is_shared = take is not None

    def draw(self, rank: int, samples: int) -> Tensor:
        start = self._take(samples)
        if not self._is_shared:
            self._claims.extend((start, samples, rank))
        if start >= self._num_scattered:
            return self._order.indices(self._dealt[-1][0] + start - self._num_scattered, samples)
        parts = [self._order.indices(a, b - a) for a, b in within(self._dealt, start, start + samples)]
        return torch.cat(parts)

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass

    def left(self, used: Sequence[int]) -> list[Places]:
        numbers = iter(self._claims.tolist())
        claims = [Claim(*each) for each in zip(numbers, numbers, numbers, strict=True)]
        taken = [0] * len(used)
        for claim in claims:
            taken[claim.rank] += claim.samples
        assert all(number <= all_ for number, all_ in zip(used, taken, strict=True)), "more used up than were taken"
        return left_of(self._dealt, claims, used, sum(used))

    def position(self, rank: int) -> PlainState:
        return {}

    def go_on(self, rank: int, position: PlainState) -> None:
        pass

    def _count(self, samples: int) -> int:
        start, self._next = self._next, self._next + samples
        return start


class Independent:
    """Uniform draws with replacement."""

    def __init__(self, size: int, numbers: Sequence[int], seed: int, *, visits: bool = False) -> None:
        self._size = size
        self._generators = [torch.Generator().manual_seed(seed_for(seed, Purpose.IID, number)) for number in numbers]
        self._drawn = [0] * len(self._generators)
        self._visits = visits

    def draw(self, rank: int, samples: int) -> Tensor:
        indices = torch.randint(self._size, (samples,), generator=self._generators[rank])
        if self._visits:
            # A worker counts its draws, whatever they are of: they all differ, and that is what matters.
            first = self._drawn[rank] = self._drawn[rank] % _MOST_VISITS
            indices.add_(torch.arange(first, first + samples), alpha=self._size)
            self._drawn[rank] += samples
        return indices

    def assign(self, rank: int, start: float, stop: float) -> None:
        pass

    def left(self, used: Sequence[int]) -> list[Places]:
        return []

    def position(self, rank: int) -> PlainState:
        return {"generator": self._generators[rank].get_state(), "drawn": self._drawn[rank]}

    def go_on(self, rank: int, position: PlainState) -> None:
        generator, drawn = position.get("generator"), position.get("drawn")
        if isinstance(generator, Tensor):
            self._generators[rank].set_state(generator)
        if isinstance(drawn, int):
            self._drawn[rank] = drawn


class Shards:
    """Fixed shares, equal unless assigned otherwise; each worker permutes its own, epoch after epoch of its own."""

    def __init__(self, size: int, num_workers: int, seed: int, *, visits: bool = False) -> None:
        # A permutation is divided, not the data as it comes: files are often sorted by class.
        self._everything = Permutations(size, seed, Purpose.SHARDS).indices(0, size)
        self._seed = seed
        self._shares = [share.clone() for share in self._everything.tensor_split(num_workers)]
        self._orders = [
            Permutations(len(share), seed, Purpose.SHARD_ORDER, rank) for rank, share in enumerate(self._shares)
        ]
        self._visits = visits
        self._next = [0] * num_workers
        self._ranges: list[tuple[float, float] | None] = [None] * num_workers

    def draw(self, rank: int, samples: int) -> Tensor:
        start, self._next[rank] = self._next[rank], self._next[rank] + samples
        indices = self._shares[rank][self._orders[rank].indices(start, samples)]
        if self._visits:
            epochs = torch.arange(start, start + samples) // len(self._shares[rank])
            indices.add_(epochs, alpha=len(self._everything))
        return indices

    def assign(self, rank: int, start: float, stop: float) -> None:
        size = len(self._everything)
        first = min(round(start * size), size - 1)
        # At least one sample: from an empty range nothing could be drawn.
        self._shares[rank] = self._everything[first : max(first + 1, round(stop * size))].clone()
        self._orders[rank] = Permutations(len(self._shares[rank]), self._seed, Purpose.SHARD_ORDER, rank)
        self._next[rank] = 0
        self._ranges[rank] = start, stop

    def left(self, used: Sequence[int]) -> list[Places]:
        return []

    def position(self, rank: int) -> PlainState:
        return {"workers": len(self._next), "next": self._next[rank], "range": self._ranges[rank]}

    def go_on(self, rank: int, position: PlainState) -> None:
        # Among another number of workers, the shares are others: each begins its own anew.
        if position.get("workers") != len(self._next):
            return
        given, following = position["range"], position["next"]
        if isinstance(given, Sequence):
            self.assign(rank, *given)
        assert isinstance(following, int)
        self._next[rank] = following
