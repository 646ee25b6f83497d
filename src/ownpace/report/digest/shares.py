"""The seconds that each worker spent on each thing."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = ("compute", "load", "wait", "transfer")


class Spent:
    """Seconds by kind and node, or group of nodes. What overlaps within one kind counts once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[float, float]] = {}
        """Seconds, and until when."""

    def add(self, kind: str, who: str, times: Iterable[tuple[float, float]]) -> None:
        """What took so long. Of one node and kind, nothing may end before what was added before."""
        seconds, latest = self._found.get((kind, who), (0.0, 0.0))
        for t, until in times:
            begin = t if t > latest else latest
            if until > begin:
                seconds += until - begin
                latest = until
        self._found[kind, who] = seconds, latest

    @property
    def until(self) -> float:
        """When the last of it ended."""
        return max((found[1] for found in self._found.values()), default=0.0)

    def of(self, worker: str, groups: Iterable[str]) -> dict[str, float]:
        """The seconds of one worker by kind; what a group did, all its members did."""
        mine = (worker, *groups)
        found = {kind: sum(self._found[kind, who][0] for who in mine if (kind, who) in self._found) for kind in KINDS}
        return {kind: seconds for kind, seconds in found.items() if seconds}
