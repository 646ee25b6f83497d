"""What happens to machines, as the fleet plans it: who is there, who is gone, and when the others notice.

    kill     noticed at once: a connection breaks. What it had sent before still arrives.
    cut      nothing leaves or arrives; after SILENCE_S without a word it is taken for dead. If it is back earlier,
             what was under way arrives then, as over TCP, and nobody knows.
    pause    the machine computes nothing, but is there; nothing else changes.

A machine that comes back, or is started again, joins with the next generation.
"""

from __future__ import annotations

import math
from functools import partial

from ownpace.core.contract import events
from ownpace.core.contract.errors import MachineDied
from ownpace.engines.virtual.awaitables import VirtualMessage
from ownpace.engines.virtual.clock import Planned
from ownpace.engines.virtual.collectives import Delivery
from ownpace.engines.virtual.generation import VirtualGeneration
from ownpace.engines.virtual.nodes import VirtualNode
from ownpace.engines.virtual.simulation import Simulation
from ownpace.engines.virtual.snapshots import ServerSnapshots
from ownpace.fleet import PlannedFault

SILENCE_S = 10.0
"""Of whom nothing is heard for so long is taken for dead."""
RESTART_S = 5.0
"""How long it takes to start a machine's process again."""


class Faults:
    """Plays the faults of a fleet."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._snapshots = ServerSnapshots(simulation)
        self.alive = list(simulation.numbers)
        """The workers that are there, by the order of the fleet, whether they take part or wait to join. All of them
        are in the next generation: a fleet never has more than may join."""
        self.servers_back_s: dict[int, float] = {}
        """The servers that are gone, and when they are started again."""
        self.died: set[str] = set()
        """The workers that died since the generation began: what they knew is gone, even if they are back."""
        self.lost = 0
        """Updates that died with servers since then."""
        self._cut_until_s: dict[str, float] = {}
        self._generation: VirtualGeneration | None = None
        self._is_running = False
        self.broken: str | None = None
        """Why it cannot go on, if it cannot."""
        self.awaited = False
        """Whether the next generation is wanted, because somebody waits to join it."""

    def plan(self, after_s: float) -> None:
        """Schedule all that happens after that time."""
        self._snapshots.plan(after_s)
        for fault in self._simulation.job.fleet.fault:
            if fault.server is not None:
                if fault.server < len(self._simulation.job.servers):
                    self._at(fault.at_s, after_s, partial(self._kill_server, fault.server, fault))
            elif fault.kind == "pause":
                # It is in the machine's own changes of pace; here it is only recorded.
                self._at(fault.at_s, after_s, partial(self._note, fault.worker, "pause"))
                self._at(fault.back_at_s, after_s, partial(self._note, fault.worker, "back"))
            elif fault.kind == "cut":
                self._plan_cut(fault, after_s)
            else:
                self._at(fault.at_s, after_s, partial(self._kill, fault))
                self._at(self._back_s(fault), after_s, partial(self._come_back, fault.worker))
        for name in self._cut_until_s:  # a run that goes on from a checkpoint has its nodes already
            self._hold_up(name)

    def begin(self, generation: VirtualGeneration) -> None:
        """From now on a death breaks this generation, and whoever comes back waits for its end."""
        self._generation, self._is_running = generation, True
        self.broken, self.awaited = None, False
        self.died, self.lost = set(), 0
        self._snapshots.begin(generation.servers)
        for name in self._cut_until_s:  # also of who was cut off between two generations
            self._hold_up(name)

    def end(self) -> None:
        """The generation has ended, or cannot go on: deaths break nothing any more."""
        self._is_running = False

    def _at(self, time: float | None, after_s: float, happening: partial[None]) -> None:
        # What was due at the time of a checkpoint happened before it, since it was scheduled first.
        if time is not None and (time > after_s or after_s == 0):
            self._simulation.clock.at(time, Planned(happening))

    def _back_s(self, fault: PlannedFault) -> float | None:
        started = self._simulation.job.on_failure == "restart"
        return fault.at_s + RESTART_S if fault.back_at_s is None and started else fault.back_at_s

    def _plan_cut(self, fault: PlannedFault, after_s: float) -> None:
        noticed_s = fault.at_s + SILENCE_S
        back_s = math.inf if fault.back_at_s is None else fault.back_at_s
        # Until then nothing gets through; later the others have gone on without it, and it may only join.
        until_s = min(back_s, noticed_s)
        self._at(fault.at_s, after_s, partial(self._cut, fault.worker, until_s))
        if after_s > 0 and fault.at_s <= after_s < until_s:
            self._cut_until_s[fault.worker] = max(until_s, self._cut_until_s.get(fault.worker, 0.0))
        if back_s > noticed_s:
            self._at(noticed_s, after_s, partial(self._fall_silent, fault.worker))
            self._at(fault.back_at_s, after_s, partial(self._come_back, fault.worker))
        else:
            self._at(fault.back_at_s, after_s, partial(self._note, fault.worker, "back"))

    # ---- what happens ----

    def _kill(self, fault: PlannedFault) -> None:
        self._note(fault.worker, "kill")
        self._die(fault.worker, "was killed")

    def _fall_silent(self, name: str) -> None:
        clock, cut = self._simulation.clock, self._node(name)
        # It never got through: only what a machine had really sent before it died may still arrive.
        clock.drop(lambda event: cut is None or not _concerns(event, cut))
        self._die(name, f"has been silent for {SILENCE_S:g} s")

    def _die(self, name: str, how: str) -> None:
        if name not in self.alive:
            return
        self.alive.remove(name)
        self.died.add(name)
        job, time = self._simulation.job, self._simulation.clock.time
        if job.on_failure == "stop":
            raise MachineDied(f"{name} {how} at {time:g} s; the others do not go on without it, as you asked")
        if len(self.alive) < job.min_workers:
            left = f"{len(self.alive)} of at least {job.min_workers} workers are left"
            raise MachineDied(f"{name} {how} at {time:g} s; {left}, too few to go on")
        if self._generation is not None and self._generation.needs(name):
            self._break("death")

    def _kill_server(self, index: int, fault: PlannedFault) -> None:
        name, time = f"server-{index}", self._simulation.clock.time
        self._note(name, "kill")
        if self._simulation.job.on_failure == "stop":
            raise MachineDied(f"{name} was killed at {time:g} s; the others do not go on without it, as you asked")
        back_s = fault.at_s + RESTART_S if fault.back_at_s is None else fault.back_at_s
        self.servers_back_s[index] = max(back_s, self.servers_back_s.get(index, 0.0))
        if self._generation is not None:
            self._generation.lose_server(index)
            self.lost += self._snapshots.restore(index)
            self._break("restart")

    def _break(self, why: str) -> None:
        # A server's death says more than a worker's at the same moment.
        if self.broken is None or why == "restart":
            self.broken = why
        if self._is_running:
            self._simulation.clock.going_on = False

    def _come_back(self, name: str) -> None:
        if name in self.alive:
            return
        self._note(name, "back")
        numbers = self._simulation.numbers
        self.alive = sorted([*self.alive, name], key=numbers.__getitem__)
        if self._is_running:
            # All nodes are told to stop, as when the time is up, and end in good order.
            self.awaited = True
            self._simulation.deadline_s = min(self._simulation.deadline_s, self._simulation.clock.time)

    def _cut(self, name: str, until_s: float) -> None:
        self._note(name, "cut")
        self._cut_until_s[name] = max(until_s, self._cut_until_s.get(name, 0.0))
        self._hold_up(name)

    def _hold_up(self, name: str) -> None:
        """Let nothing pass a machine's link until it is no longer cut off."""
        node, until_s = self._node(name), self._cut_until_s[name]
        if node is not None and until_s > self._simulation.clock.time:
            # The link is taken until then: that is all a sender or a collective ever looks at.
            node.in_free_s, node.out_free_s = max(node.in_free_s, until_s), max(node.out_free_s, until_s)
            self._simulation.clock.postpone(lambda event: _concerns(event, node), until_s)

    def _node(self, name: str) -> VirtualNode | None:
        return None if self._generation is None else self._generation.worker(name)

    def _note(self, name: str, what: str) -> None:
        self._simulation.emit(events.Fault(self._simulation.clock.time, name, what))


def _concerns(event: object, node: VirtualNode) -> bool:
    """Whether a transfer under way needs that node's link."""
    if isinstance(event, VirtualMessage):
        return event.receiver is node or event.sender is node.address
    return isinstance(event, Delivery) and event.collective.has(node.address)


__all__ = ["RESTART_S", "SILENCE_S", "Faults"]
