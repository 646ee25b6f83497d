"""In which order the layers of a gradient are summed.

A backward pass has the last layers first, and the next forward pass needs the first layers first. While the backward
pass runs, a link that is free takes whatever is ready; there is nothing to gain by keeping it idle. Where several
buckets of layers are ready, it takes the one that is needed first: the lowest. So buckets that sums have no time for
during the backward pass are those in between, not the lowest ones; the forward pass begins as soon as the lowest is
back, and the others travel while it goes through the layers below them. Where sums keep up with the backward pass, at
most one bucket is ready at a time, and this is the order of the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

_ALMOST = 1e-9
_SLOWEST = 100.0
"""The longest sum that is reckoned with, in backward passes: from some ten on, the order is the same."""
_SMOOTHING = 0.5
_FASTER = 0.8


def launch_order(ready: Sequence[float], sizes: Sequence[float], sum_s: float) -> tuple[int, ...]:
    """The order in which buckets leave.

    Args:
        ready: Of each bucket, when the backward pass has it, where 1 is its end; the last layers' first.
        sizes: Of each bucket.
        sum_s: How long a sum of all takes, where 1 is the time of a backward pass.

    >>> launch_order([0.25, 0.5, 0.75, 1.0], [1, 1, 1, 1], 0.5)
    (0, 1, 2, 3)
    >>> launch_order([0.25, 0.5, 0.75, 1.0], [1, 1, 1, 1], 2.0)
    (0, 2, 3, 1)
    """
    order: list[int] = []
    time, s_per_size = 0.0, sum_s / sum(sizes)
    left = set(range(len(ready)))
    while left:
        there = [number for number in left if ready[number] <= time + _ALMOST]
        if not there:
            time = min(ready[number] for number in left)
            continue
        lowest = max(there)
        left.remove(lowest)
        order.append(lowest)
        time += sizes[lowest] * s_per_size
    return tuple(order)


class SumOrder:
    """The order of one group's sums, which follows how long they take.

    All members learn from the same sums, so all have the same order; another would make them wait for each other
    without an end.
    """

    def __init__(self, ready: Sequence[float], sizes: Sequence[float]) -> None:
        self._ready = ready
        self._sizes = [size / sum(sizes) for size in sizes]
        self._sum_s = 0.0
        self.order = launch_order(ready, self._sizes, self._sum_s)

    def learn(self, through: float) -> None:
        """So much of a sum was over when the backward pass was, as the mean of all members."""
        # Those before the lowest layers in the order: the most that could have been over.
        early = self.order[: self.order.index(len(self._sizes) - 1)]
        most = sum(self._sizes[number] for number in early)
        busy_s = max(1 - self._ready[0], 0.01)
        if through < most - min(self._sizes) / 2:
            found = min(_SLOWEST, busy_s / max(through, busy_s / _SLOWEST))
            self._sum_s += _SMOOTHING * (found - self._sum_s)
        else:  # all that had left was over: sums may be faster than was thought
            self._sum_s *= _FASTER
        self.order = launch_order(self._ready, self._sizes, self._sum_s)


__all__ = ["SumOrder", "launch_order"]
