"""The seconds that each worker spent on each thing."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = ("compute", "load", "wait", "transfer")


class Spent:
    """Seconds by kind and node, or group of nodes. What overlaps within one kind counts once."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}
        self._until: dict[tuple[str, str], float] = {}

    def add(self, kind: str, who: str, t: float, until: float) -> None:
        """Something took from `t` to `until`. Of one node and kind, it must not end before what was added before."""
        key = (kind, who)
        begin = max(t, self._until.get(key, 0.0))
        if until > begin:
            self._seconds[key] = self._seconds.get(key, 0.0) + until - begin
            self._until[key] = until

    def of(self, worker: str, groups: Iterable[str]) -> dict[str, float]:
        """The seconds of one worker by kind; what a group did, all its members did."""
        mine = (worker, *groups)
        found = {kind: sum(self._seconds.get((kind, who), 0.0) for who in mine) for kind in KINDS}
        return {kind: seconds for kind, seconds in found.items() if seconds}
