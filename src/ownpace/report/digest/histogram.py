"""How often each value occurred."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BINS = 24


@dataclass(frozen=True)
class Bin:
    """Values from `low` to `high`, both counted."""

    low: int
    high: int
    count: int


class Histogram:
    """Counts values that are not negative, in bins that grow wider where there are many different ones."""

    def __init__(self, most: int = MOST_BINS) -> None:
        self._most = most
        self._counts: dict[int, int] = {}
        self._width = 1
        self._total = self._sum = 0
        self.most = 0
        """The largest value."""

    def add(self, value: int) -> None:
        """Count one more value."""
        if value > self.most:
            self.most = value
        elif value < 0:
            value = 0
        key = value // self._width
        self._total += 1
        self._sum += value
        self._counts[key] = self._counts.get(key, 0) + 1
        # Many more than are shown, so that bins need not be wider than they must.
        if len(self._counts) > 64 * self._most:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        halved: dict[int, int] = {}
        for key, count in self._counts.items():
            halved[key // 2] = halved.get(key // 2, 0) + count
        self._counts = halved

    @property
    def total(self) -> int:
        """How many values there were."""
        return self._total

    @property
    def mean(self) -> float:
        """Of all values; 0 if there was none."""
        return self._sum / max(1, self._total)

    def bins(self) -> list[Bin]:
        """Bins of one width from the lowest to the highest value, empty ones between them as well.

        >>> counted = Histogram()
        >>> for value in (0, 1, 1, 3):
        ...     counted.add(value)
        >>> [(each.low, each.count) for each in counted.bins()]
        [(0, 1), (1, 2), (2, 0), (3, 1)]
        """
        if not self._counts:
            return []
        low, high = min(self._counts), max(self._counts)
        step = -(-(high - low + 1) // self._most)
        sums = [0] * ((high - low) // step + 1)
        for key, count in self._counts.items():
            sums[(key - low) // step] += count
        width = step * self._width
        start = low * self._width
        return [Bin(start + at * width, start + (at + 1) * width - 1, count) for at, count in enumerate(sums)]
