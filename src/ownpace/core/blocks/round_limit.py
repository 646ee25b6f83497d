"""How long a worker goes on alone while a sum is under way, before it waits for it.

    C, c_i    `max_batch`; c_i = C · v_i / Σ_j v_j in whole numbers that add up to C; v_i: measured pace
    r_i       samples that worker i made while a sum was under way, or twice those after which it waited for one: the
              median of the last five
    limit     c_i, and no more than twice r_i, or than two rounds of the least length, if that is more

Before the first sum, r_i is two rounds of the least length; and until one has come without being waited for, it is
eight times what was made by the last. So rounds soon get as long as it takes to hide the sums, within C. But where a
single sum is late (a machine that pauses, a network that stumbles), nobody runs on alone for much longer than usual.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from ownpace.core.blocks.quota import Quota

MOST_BATCHES = 32
"""Without a `max_batch`: C is this many times the batches of all workers."""
_LATE = 2
"""A sum that takes this many times as long as usual is late."""
_REMEMBERED = 5
_GROWTH = 8
"""Of r_i, as long as every sum was waited for: how long one takes is not known yet, only that it is longer."""


class RoundLimit:
    """The most samples of one worker's round that are made before the sum under way is waited for."""

    def __init__(self, max_batch: int | None, steps: int, batch_size: int, num_workers: int) -> None:
        """`max_batch`: 0 is no limit, None the one by default, with room for two rounds of this many steps."""
        most = max(MOST_BATCHES, _LATE * steps) * batch_size * num_workers if max_batch is None else max_batch
        self._quota = Quota("max_batch", most, num_workers, 1) if most else None
        self._needed: deque[int] = deque(maxlen=_REMEMBERED)
        self._grows = True

    def part(self, rank: int) -> int | None:
        """c_i of that worker; None: there is no limit."""
        return None if self._quota is None else self._quota.next(rank)

    def within(self, part: float, least: int) -> float:
        """The most samples of a round, of which `least` make one: of this part of C, what is not unusual."""
        needed = statistics.median(self._needed or [_LATE * least])
        return min(part, _LATE * max(least, needed))

    def learn(self, samples: int, *, waited: bool) -> None:
        """Learn how many samples were made while a sum was under way; or until it was waited for, if it took longer."""
        if self._grows:
            self._needed.clear()
            self._grows = waited
        self._needed.append(samples * (1 if not waited else _GROWTH if self._grows else _LATE))

    def follow(self, paces: Sequence[float]) -> None:
        """Divide C by these paces from now on."""
        if self._quota is not None:
            self._quota.follow(paces)


__all__ = ["MOST_BATCHES", "RoundLimit"]
