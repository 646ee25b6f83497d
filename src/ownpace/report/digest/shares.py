"""The seconds that each worker spent on each thing."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = ("compute", "load", "wait", "transfer")


class Spent:
    """Seconds by kind and node, or group of nodes. What overlaps within one kind counts once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = {}
        """Seconds, and until when."""

    def add(self, kind: str, who: str, t: float, until: float) -> None:
        """Something took from `t` to `until`. Of one node and kind, it must not end before what was added before."""
        found = self._found.get((kind, who))
        if found is None:
            found = self._found[kind, who] = [0.0, 0.0]
        begin = t if t > found[1] else found[1]
        if until > begin:
            found[0] += until - begin
            found[1] = until

    @property
    def until(self) -> float:
        """When the last of it ended."""
        return max((found[1] for found in self._found.values()), default=0.0)

    def of(self, worker: str, groups: Iterable[str]) -> dict[str, float]:
        """The seconds of one worker by kind; what a group did, all its members did."""
        mine = (worker, *groups)
        found = {kind: sum(self._found[kind, who][0] for who in mine if (kind, who) in self._found) for kind in KINDS}
        return {kind: seconds for kind, seconds in found.items() if seconds}
