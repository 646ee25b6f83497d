"""Collectives in virtual time: each begins when its last member has joined, and ends when the last byte has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Body, Gradient, Group, add_up, union
from ownpace.engines.virtual import transport
from ownpace.engines.virtual.awaitables import Arrival, Backward, CollectivePart, VirtualGradient
from ownpace.engines.virtual.clock import Due
from ownpace.engines.virtual.layered_sum import BucketTransfers
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.unjoined import SumSoFar

What = Literal["all-reduce", "reduce", "broadcast"]


class Collectives:
    """All collectives that wait for members. The k-th call of each member belongs to the k-th of every other."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._open: dict[tuple[Group, int], Collective] = {}
        self._turns: dict[tuple[Group, Address], int] = {}

    def start(
        self, what: What, part: CollectivePart, address: Address, group: Group, root: Address | None = None
    ) -> CollectivePart:
        """Let a node take part in its group's next collective, as soon as what it brings has been computed."""
        # Counted per member, not per group: a fast member may already be at the next collective.
        turn = self._turns.get((group, address), 0)
        self._turns[group, address] = turn + 1
        collective = self._open.get((group, turn))
        if collective is None:
            collective = self._open[group, turn] = Collective(self._simulation, group, turn, what, root)
        body = part.body
        if isinstance(body, VirtualGradient) and not body.done:
            collective.sum_early(address, body)
            if collective.goes_by_layer:
                # It joins as soon as it is known when its layers will be there.
                body.when_known(partial(self._join_computing, collective, part, address))
            else:
                body.then = partial(self._join, collective, part, address)
        else:
            self._join(collective, part, address)
        return part

    def _join_computing(
        self, collective: Collective, part: CollectivePart, address: Address, backward: Backward
    ) -> None:
        part.backward = backward
        self._join(collective, part, address)
        part.joined_s = backward.end_s

    def waiting(self) -> list[str]:
        """Which nodes wait for which, in words."""
        return [line for collective in self._open.values() for line in collective.waiting()]

    def _join(self, collective: Collective, part: CollectivePart, address: Address) -> None:
        part.joined_s = self._simulation.clock.time
        if collective.join(address, part):
            # No member comes back to this turn. Kept, it would hold the tensors of every sum of the run.
            del self._open[collective.key]


class Collective:
    """One all-reduce, reduce or broadcast."""

    def __init__(self, simulation: Simulation, group: Group, turn: int, what: What, root: Address | None) -> None:
        self._simulation = simulation
        self.key = group, turn
        self._group = group
        self._what = what
        self._root = root
        self._parts: dict[Address, CollectivePart] = {}
        self._early = SumSoFar()
        self.goes_by_layer = what == "all-reduce" and len(group) > 1 and len(simulation.sum_buckets) > 1
        """Whether layers are summed as they are computed."""

    def sum_early(self, address: Address, gradient: VirtualGradient) -> None:
        """Add up a gradient that was handed over before it was computed, if its turn in the sum has come."""
        # In the group's order, as always; whoever comes before its turn waits with the others. Contents are known long
        # before the time at which they are: there, only the time is still to pass.
        layers, order = gradient.parts, self._group.members
        if layers is not None and self._early.members < len(order) and order[self._early.members] is address:
            self._early.add(layers)
            layers.release()

    def join(self, address: Address, part: CollectivePart) -> bool:
        """Take part; returns whether all members have joined now."""
        if part.what != self._what:
            raise RuntimeError(f"{address.name} starts a {part.what} in {self._group.name} where others {self._what}")
        self._parts[address] = part
        if len(self._parts) < len(self._group.members):
            return False
        self._begin()
        return True

    def waiting(self) -> list[str]:
        """Which nodes wait for which, in words."""
        missing = ", ".join(member.name for member in self._group if member not in self._parts)
        return [f"{member.name} for {missing} in a {self._what}" for member in self._parts]

    def _begin(self) -> None:
        passes = [part.backward for part in self._parts.values() if part.backward is not None]
        if passes:
            self._begin_by_layer(passes)
            return
        simulation = self._simulation
        # In the group's order, not that of arrival: floating-point sums depend on it, and runs must be reproducible.
        bodies = [self._parts[member].body for member in self._group]
        sender = self._root if self._what == "broadcast" else None
        result = total(bodies, self._early) if sender is None else self._parts[sender].body
        # The largest: a member that passes None contributes nothing, but what it receives has the full size.
        nbytes = max([0 if body is None else body.nbytes for body in bodies])
        start, end = self._take_up_links(nbytes)
        # Decided when the collective begins, which is one moment for all members; they hear it at different ones.
        self._tell_who_stops()
        simulation.clock.at(end, Delivery(self, result))
        if simulation.detail:
            simulation.emit(events.Transfer(start, end, self._what, self._group.name, nbytes))

    def _begin_by_layer(self, passes: Sequence[Backward]) -> None:
        """Sum buckets of layers while others are still being computed."""
        result = total([self._parts[member].body for member in self._group], self._early)
        assert isinstance(result, Gradient), "what is still computed is a gradient"
        on_booked = partial(self._finish_by_layer, result)
        BucketTransfers(self._simulation, self._group, passes, result.total.element_size(), on_booked)

    def _finish_by_layer(self, result: Gradient, arrivals: Sequence[Arrival]) -> None:
        """Every member has its whole gradient, and it is known when each bucket of the sum arrives."""
        self._tell_who_stops()
        clock, last_s = self._simulation.clock, max(time for _, time in arrivals)
        early, late = [], []
        for member in self._group:
            part = self._parts[member]
            progress = part.node.progress
            # The last update waits for all of it: nothing may be under way when the accounts are closed.
            is_last = part.stop or progress.samples + result.new_samples >= progress.budget
            if part.by_layer and not is_last:
                part.arrivals = arrivals
                early.append(part)
            else:
                late.append(part)
        for time, parts in ((arrivals[0][1], early), (last_s, late)):
            if parts:
                clock.at(time, Delivery(self, result, parts))

    def _take_up_links(self, nbytes: int) -> tuple[float, float]:
        now, latency_s = self._simulation.clock.time, self._simulation.latency_s
        links: list[transport.Link] = [member.node for member in self._group]  # type: ignore[attr-defined]  # virtual
        if self._what == "all-reduce" or self._root is None:
            is_small = nbytes <= self._simulation.job.fleet.network.direct_bytes
            return (transport.exchange if is_small else transport.all_reduce)(now, links, nbytes, latency_s)
        root = links[self._group.members.index(self._root)]
        # Site by site, from the root or to it.
        ways = transport.ways(links, first=root) if self._what == "broadcast" else transport.ways(links, last=root)
        return transport.chain(now, links, nbytes, latency_s, ways)

    def _tell_who_stops(self) -> None:
        """Say whether the time is up: a sum, to all its members; a broadcast, what its root knows from sums it awaited.

        So groups that broadcast the same sum at different times come to the same end.
        """
        over = self._simulation.clock.time >= self._simulation.deadline_s
        if self._what == "broadcast" and self._root is not None:
            over = self._parts[self._root].knows_of_stop
        for member, part in self._parts.items():
            part.stop = over and (self._what != "reduce" or member is self._root)

    def has(self, address: Address) -> bool:
        """Whether that node is a member."""
        return address in self._group.members

    def deliver(self, result: Any, parts: Sequence[CollectivePart] | None) -> None:
        """Hand every member what it gets, or those whose parts these are."""
        if parts is not None:
            for part in parts:
                part.resolve(result)
            return
        # In the group's order: coroutines go on inside this loop, and a run must be reproducible.
        for member in self._group:
            reduced_elsewhere = self._what == "reduce" and member is not self._root
            self._parts[member].resolve(None if reduced_elsewhere else result)


class Delivery(Due):
    """The end of a collective."""

    __slots__ = ("_parts", "_result", "collective", "done", "driver")

    def __init__(self, collective: Collective, result: Any, parts: Sequence[CollectivePart] | None = None) -> None:
        self.done = False
        self.driver = None
        self.collective = collective
        self._result = result
        self._parts = parts

    def happen(self) -> None:
        self.collective.deliver(self._result, self._parts)


def total(bodies: Sequence[Body], early: SumSoFar) -> Body:
    """The sum of what the members of a collective bring; None brings nothing.

    `early`: that of the first of them, as far as it has been made.
    """
    given = [body for body in bodies if body is not None]
    if not isinstance(given[0], Gradient):
        return add_up([body for body in given if isinstance(body, Tensor)])
    gradients = [body for body in given if isinstance(body, Gradient)]
    while early.members < len(gradients):
        following = gradients[early.members]
        if not isinstance(following, VirtualGradient) or following.parts is None:
            break
        early.add(following.parts)
    rest = [gradient.total for gradient in gradients[early.members :]]
    return union(gradients, early.plus(rest) if early.members else None)


__all__ = ["Collectives", "Delivery"]
