"""Curves of a bounded number of points."""

from __future__ import annotations

MOST_POINTS = 1200
Point = tuple[float, float, float]
"""Time, samples, value."""


class Thinned:
    """A curve that has at most this many points, however many are added. Its extremes stay."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.points: list[Point] = []
        self.num_added = 0

    def add(self, point: Point) -> None:
        """One more point, later than all before."""
        self.num_added += 1
        self.points.append(point)
        if len(self.points) >= 2 * self._most:
            self._thin()

    def _thin(self) -> None:
        """Of every four points keep the lowest and the highest; of all of them the first and the last, too."""
        first, *middle, last = self.points
        kept = [first]
        for at in range(0, len(middle), 4):
            four = range(at, min(at + 4, len(middle)))
            low, high = min(four, key=lambda i: middle[i][2]), max(four, key=lambda i: middle[i][2])
            kept += [middle[i] for i in sorted({low, high})]
        self.points = [*kept, last]
