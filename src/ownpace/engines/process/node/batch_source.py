"""Which samples a user's loop gets next: as many as the algorithm wants, at places that no other worker gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ownpace.core.learning.claims import Claim, Places, number_of, within
from ownpace.core.learning.orders import Order
from ownpace.core.learning.sampling import Take


class BatchSource:
    """Takes places for each batch, until none is left. It is a batch sampler for torch's DataLoader."""

    def __init__(
        self,
        wanted_samples: Callable[[], int],
        take: Take,
        order: Order,
        left: Sequence[Places],
        *,
        stop: int | None = None,
        fills: int | None = None,
        least: int = 1,
    ) -> None:
        """A source for one loop over the data.

        Args:
            wanted_samples: How many samples the algorithm wants next.
            take: Takes places among those that are left, and returns the first.
            order: What is at which place.
            left: The places that are left: at the beginning of a run, all.
            stop: The place, among those that are left, at which this worker ends (None: the last).
            fills: What does not fill a batch of this size is left out (None: nothing is).
            least: Samples of a batch, whatever is wanted, if there are so many.
        """
        self._wanted_samples = wanted_samples
        self._take = take
        self._order = order
        self._left = left
        self._stop = number_of(left) if stop is None else stop
        self._fills = fills
        self._least = least
        self.sizes: list[int] = []
        """Of the batches that were drawn and not handed out yet."""

    def __iter__(self) -> Iterator[list[object]]:
        while batch := self._draw(max(self._least, self._wanted_samples())):
            self.sizes.append(len(batch))
            yield batch

    def _draw(self, samples: int) -> list[object]:
        # Beyond the end, the shared count goes on rising: that is how every worker finds out that nothing is left.
        start = self._take(samples)
        rest = self._stop - (start + samples)
        if 0 < rest < self._least and self._fills is None:
            # Another worker may have been quicker: then this reaches beyond the end.
            samples += rest if self._take(rest) == start + samples else 0
        batch: list[object] = []
        for first, stop in within(self._left, start, min(start + samples, self._stop)):
            batch += self._order.at(first, stop - first)
        if self._fills is not None and len(batch) < samples:
            del batch[len(batch) - len(batch) % min(self._fills, samples) :]
        return batch


class OwnCount:
    """Takes places of a worker's own share; what was taken is noted where all workers can read it."""

    def __init__(self, first: int, rank: int, note: Callable[[Claim], None]) -> None:
        self._next = first
        self._rank = rank
        self._note = note

    def __call__(self, places: int) -> int:
        start, self._next = self._next, self._next + places
        self._note(Claim(start, places, self._rank))
        return start


def before(left: Sequence[Places], place: int) -> int:
    """How many of the places that are left come before this one.

    >>> before([(5, 6), (7, 10)], 8)
    2
    """
    return number_of((start, min(stop, place)) for start, stop in left if start < place)
