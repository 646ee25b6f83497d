"""A fleet without processes: its ranks share a count, and their loops are gone through in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ownpace.core.learning.claims import Claim, Places, left_over, number_of
from ownpace.core.learning.sampling import Take
from ownpace.drop_in.batches import Batches
from ownpace.drop_in.data import Asked, read_data
from ownpace.drop_in.digest import SampleDigests
from ownpace.drop_in.feeds import Member
from ownpace.drop_in.loops import LoopPlan, Loops, Present


class Rank(Loops):
    """What `Batches` needs of a fleet; the algorithm wants `wanted` samples each time."""

    def __init__(self, fleet: AFleet, rank: int, wanted: int) -> None:
        self.fleet = fleet
        self.rank = rank
        self.wanted = wanted
        self.number = 0
        self.left: Sequence[Places] | None = None
        self.places: Sequence[Places] = ()
        self.digests = SampleDigests()
        self.sizes: list[int] = []
        self.begun: list[LoopPlan] = []
        self.ended: list[bool] = []

    @property
    def member(self) -> Member:
        return Member(self.rank, len(self.fleet.ranks), 7)

    @property
    def present(self) -> Present:
        return Present(self.rank, len(self.fleet.ranks) - self.fleet.deals, self.fleet.deals > 0)

    @property
    def deals(self) -> int:
        return self.fleet.deals

    @property
    def dealt(self) -> Sequence[Places]:
        return self.places

    @property
    def next_number(self) -> int:
        return self.number + 1

    def check_free(self) -> None:
        assert len(self.begun) == len(self.ended)

    def attempt(self, act: Callable[[], None]) -> bool:
        act()
        return True

    def begin(
        self, plan_of: Callable[[Sequence[Places]], LoopPlan], alike: dict[str, str], everything: Sequence[Places]
    ) -> int:
        self.places = everything if self.left is None else self.left
        self.begun.append(plan_of(self.places))
        self.number += 1
        return self.number

    @property
    def least_samples(self) -> int:
        return 1 if self.present.num_workers == 1 else 2

    def wanted_samples(self) -> int:
        return self.wanted

    def taking(self, number: int) -> Take:
        def take(places: int) -> int:
            start = self.fleet.counts.get(number, 0)
            self.fleet.counts[number] = start + places
            self.note(number, Claim(start, places, self.rank))
            return start

        return take

    def note(self, number: int, claim: Claim) -> None:
        self.fleet.claims.append(claim)

    def say(self, number: int, about: str, words: str) -> dict[int, str]:
        said = self.fleet.said.setdefault((number, about), {})
        said[self.rank] = words
        return {rank: each for rank, each in said.items() if rank != self.rank}

    def hand_out(self, samples: int, batch: object) -> bool:
        self.sizes.append(samples)
        return True

    def end(self, *, stop: bool) -> bool:
        self.ended.append(stop)
        return True


class AFleet:
    """Ranks that want so many samples each."""

    def __init__(self, *wanted: int) -> None:
        self.counts: dict[int, int] = {}
        self.claims: list[Claim] = []
        self.said: dict[tuple[int, str], dict[int, str]] = {}
        self.ranks: list[Rank] = []
        self.deals = 0
        for rank, samples in enumerate(wanted or (4,)):
            self.ranks.append(Rank(self, rank, samples))

    def lose(self, rank: int) -> int:
        """A rank is gone, and nothing counts but what the first had learnt from: its batches but the last, so many."""
        mine = [claim for claim in self.claims if claim.rank == 0]
        learnt = len(mine) - 1
        used = sum(claim.samples for claim in mine[:learnt])
        first = self.ranks[0]
        whole = [(0, 37)]
        first.places = left_over(37, sorted(self.claims), [used, *[0] * rank])
        assert number_of(whole) - number_of(first.places) == used
        self.counts.clear()
        self.deals += 1
        return learnt

    def batches(self, data: Any, batch_size: int | None = 4, **asked: Any) -> list[Batches]:
        """Those of each rank; `data` may be a function of the rank, marked by `each=True`."""
        each: Callable[[int], Any] = data if asked.pop("each", False) else lambda rank: data
        loader = {name: asked.pop(name) for name in list(asked) if name not in Asked.__dataclass_fields__}
        return [
            Batches(rank, read_data(each(rank.rank), Asked(batch_size=batch_size, loader=loader, **asked)))
            for rank in self.ranks
        ]

    def deal(self, data: Any, batch_size: int | None = 4, **asked: Any) -> list[list[Any]]:
        """The batches that each rank gets, if they take turns."""
        return in_turn(self.batches(data, batch_size, **asked))


def in_turn(all_batches: Sequence[Batches], most: int = 1000) -> list[list[Any]]:
    """The batches that each rank gets, if they take turns; at most so many each."""
    iterators = [iter(batches) for batches in all_batches]
    got: list[list[Any]] = [[] for _ in iterators]
    waiting = list(range(len(iterators)))
    for _ in range(most):
        for rank in list(waiting):
            try:
                got[rank].append(next(iterators[rank]))
            except StopIteration:
                waiting.remove(rank)
    for iterator in iterators:
        iterator.close()  # type: ignore[attr-defined]  # a generator: the loop is left
    return got


def flat(got: Sequence[Sequence[Any]]) -> list[int]:
    """All samples, by rank and batch."""
    return [int(sample) for batch in itertools.chain(*got) for sample in batch]


def numbers(count: int) -> Iterator[int]:
    """A stream that can be read once."""
    yield from range(count)
