"""How fast an algorithm is on a fleet: samples, updates and use of the network, taken from the events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ownpace.core.contract.events import End, Event, Transfer, Update
from ownpace.engines import Job


@dataclass(frozen=True)
class Timing:
    """What an algorithm does in a second, once it is under way."""

    samples_per_s: float
    updates_per_s: float
    samples_per_update: float
    share_of_limit: float
    """samples_per_s over the sum of what each worker would do alone and without a pause."""
    network_use: float | None
    """Of its time, how much the busiest node or group has something under way; None: not recorded."""
    updates: int
    """That this was measured over."""


class TimingWatch:
    """Looks at the events of one run, and keeps what its speed is made of."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._updates: list[tuple[float, int]] = []
        """When, and samples so far."""
        self._busy_s: dict[str, float] = {}
        self._busy_until: dict[str, float] = {}
        self._end: End | None = None

    def take(self, event: Event) -> None:
        """Look at one more event."""
        if isinstance(event, Update):
            # Of several servers, each makes the update of its shard: one of them counts.
            if not self._updates or event.total_samples > self._updates[-1][1]:
                self._updates.append((event.t, event.total_samples))
        elif isinstance(event, Transfer):
            for who in (event.who,) if isinstance(event.who, str) else event.who:
                self._occupied(who, event.t, event.until)
        elif isinstance(event, End):
            self._end = event

    def _occupied(self, who: str, start: float, stop: float) -> None:
        start = max(start, self._busy_until.get(who, 0.0))
        if stop > start:
            self._busy_s[who] = self._busy_s.get(who, 0.0) + stop - start
            self._busy_until[who] = stop

    def timing(self) -> Timing:
        """The run's speed, without its beginning: the first updates of many algorithms are unlike the others."""
        assert self._end is not None, "the run has ended"
        sums = self._end.sums
        seconds, samples, updates = sums.seconds, sums.samples, sums.updates
        inside = [update for update in self._updates if update[0] <= seconds]
        if len(inside) >= 4:
            first = len(inside) // 4
            (from_s, before), (until_s, after) = inside[first - 1], inside[-1]
            seconds, samples, updates = until_s - from_s, after - before, len(inside) - first
        rate = samples / seconds if seconds > 0 else 0.0
        network_use = min(1.0, max(self._busy_s.values(), default=0.0) / sums.seconds) if sums.seconds > 0 else 0.0
        return Timing(
            samples_per_s=rate,
            updates_per_s=updates / seconds if seconds > 0 else 0.0,
            samples_per_update=samples / max(1, updates),
            share_of_limit=rate / sums.limit_samples_per_s if sums.limit_samples_per_s else 0.0,
            network_use=network_use if self._job.detail else None,
            updates=sums.updates,
        )


def same_updates(timings: Mapping[str, Timing], tolerance: float = 0.01) -> bool:
    """Whether all of these make updates of the same number of samples."""
    sizes = [timing.samples_per_update for timing in timings.values()]
    return max(sizes) <= (1 + tolerance) * min(sizes)
