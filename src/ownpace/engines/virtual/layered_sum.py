"""Sums of gradients that are still being computed, in virtual time: each bucket of layers is summed when all members
have it and the links are free, the lowest first of those that are ready (`engines.sum_order` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ownpace.core.contract import events
from ownpace.core.contract.values import Group
from ownpace.core.learning.layer_work import LayerBucket
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.awaitables import Arrival, Backward
from ownpace.engines.virtual.clock import Due
from ownpace.engines.virtual.simulation import Simulation

OnBooked = Callable[[Sequence[Arrival]], None]
"""Called when all members have their whole gradients, with when each bucket of the sum arrives, the lowest first."""


class BucketTransfers(Due):
    """The transfers of one sum."""

    __slots__ = ("_arrivals", "_group", "_links", "_on_booked", "_ready", "_simulation", "done", "driver")

    def __init__(
        self, simulation: Simulation, group: Group, passes: Iterable[Backward], itemsize: int, on_booked: OnBooked
    ) -> None:
        """`passes`: those of the members that still compute."""
        self.done, self.driver = False, None
        self._simulation, self._group, self._on_booked = simulation, group, on_booked
        self._links: list[transport.Link] = [member.node for member in group]  # type: ignore[attr-defined]  # virtual
        self._ready = {
            bucket: (time, (bucket.stop - bucket.start) * itemsize)
            for bucket, time in ready_times(simulation, passes).items()
        }
        self._arrivals: dict[LayerBucket, float] = {}
        simulation.clock.at(max(simulation.clock.time, self._next_s()), self)

    def _next_s(self) -> float:
        return min(time for time, _ in self._ready.values())

    def happen(self) -> None:
        clock = self._simulation.clock
        there = [bucket for bucket, (time, _) in self._ready.items() if time <= clock.time]
        if len(there) == len(self._ready):
            # All at once, since nothing else can come in between: each as the next forward pass needs it.
            for bucket in sorted(there):
                self._book(bucket)
            self._on_booked(sorted(self._arrivals.items()))
            return
        free_s = self._book(min(there)) if there else 0.0
        clock.at(max(free_s, self._next_s()), self)

    def _book(self, bucket: LayerBucket) -> float:
        """Take up all links for a bucket; until when."""
        simulation, (_, nbytes) = self._simulation, self._ready.pop(bucket)
        start, end = transport.all_reduce_part(simulation.clock.time, self._links, nbytes, simulation.latency_s)
        self._arrivals[bucket] = end
        if simulation.detail:
            simulation.emit(events.Transfer(start, end, "all-reduce", self._group.name, nbytes))
        return self._links[0].out_free_s


def ready_times(simulation: Simulation, passes: Iterable[Backward]) -> dict[LayerBucket, float]:
    """When all members have each bucket of a gradient."""
    known = _last(set(passes))
    times = simulation.layer_times
    return {
        bucket: max((each.ready(times.backward_done(bucket)) for each in known), default=simulation.clock.time)
        for bucket in simulation.sum_buckets
    }


def _last(passes: set[Backward]) -> list[Backward]:
    """Those that others may have to wait for: of two at a steady pace, never the one that begins and ends earlier."""
    last = [each for each in passes if not each.processor.is_steady]
    latest_s = -1.0
    for each in sorted(passes, key=lambda each: (-each.end_s, -each.start_s)):
        if each.processor.is_steady and each.start_s > latest_s:
            latest_s = each.start_s
            last.append(each)
    return last


__all__ = ["BucketTransfers"]
