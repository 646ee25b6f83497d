"""When workers were away: from the moment at which one was found to be gone, until it takes part again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


class Absences:
    """Of all workers of a run, in its time."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[float, float]]] = {}

    @property
    def spans(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Of each worker that was away, from when until when; ∞: it still is."""
        return self._spans

    def lose(self, name: str, now: float) -> None:
        """A worker is gone."""
        self._spans.setdefault(name, []).append((now, math.inf))

    def meet(self, names: Iterable[str], now: float) -> None:
        """These take part."""
        for name in names:
            spans = self._spans.get(name)
            if spans and spans[-1][1] == math.inf:
                spans[-1] = (spans[-1][0], now)

    def share_there(self, name: str, until_s: float) -> float:
        """For which part of the run's time up to then a worker was there."""
        if until_s <= 0:
            return 1.0
        away_s = sum(min(stop, until_s) - start for start, stop in self._spans.get(name, ()) if start < until_s)
        return 1 - away_s / until_s
