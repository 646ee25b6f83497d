"""How a node lives through the generations of a complete run: the same for workers, servers and communicators.

In each generation it runs its coroutine once, from the beginning. When the hub says that a new one begins, whatever it
is doing is abandoned, wherever it waits or looks; when a peer is gone, it says so and waits for the hub's word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ownpace.core.contract.errors import OwnpaceError, PeerLost, SharedMemoryError
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.node.inbox import TICK_S, NewGeneration
from ownpace.engines.process.node.nodes import ProcessNode
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.run.rendezvous import silence_s
from ownpace.engines.process.talk.control import Finished, Goodbye
from ownpace.engines.process.talk.regrouping import Lost, Plan, Standing, StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, packets

LOSSES = (PeerLost, SharedMemoryError)
"""What a node suffers from when another one dies: by itself no reason to end."""
_WORD_S = 30.0
"""How much longer than a silence may last a node waits for the hub's word."""


@dataclass
class NodeCounts:
    """How far a node's parameters are."""

    version: int = 0
    samples: int = 0
    ahead: float = 0.0
    used: tuple[int, ...] = ()
    """Of each worker of the latest generation: how many samples that it took are used up; empty: not known."""

    @classmethod
    def of(cls, given: object) -> NodeCounts:
        """Those of a state."""
        fields = cast("dict[str, Any]", given)
        return cls(fields["version"], fields["samples"], fields["ahead"], tuple(fields["used"]))

    def standing(self, generation: int, *, is_new: bool, checksums: list[int], stage: int) -> Standing:
        """The same for the hub."""
        return Standing(generation, is_new, self.version, self.samples, self.ahead, list(self.used), checksums, stage)


class NodeLife(Protocol):
    """A node's process, over all generations."""

    @property
    def node(self) -> ProcessNode:
        """What it is in this one."""

    def begin(self) -> None:
        """Take part in the first generation, up to its start."""

    def regroup(self) -> None:
        """Leave a generation for the next one, up to its start."""

    def work(self) -> None:
        """Do its part in a generation."""

    def end(self) -> list[str]:
        """End with the run, or with the generation; returns the records that sum up the run, as lines."""


def live(member: NodeLife) -> list[str]:
    """Take part from the first generation to the last.

    Returns:
        The records that sum up the run, as lines.
    """
    begin: Callable[[], None] = member.begin
    while True:
        try:
            try:
                begin()
                member.work()
                return member.end()
            except LOSSES as error:
                await_word(member.node, error)
        except NewGeneration:
            begin = member.regroup


def await_word(node: ProcessNode, error: OwnpaceError) -> None:
    """A peer is gone, it seems: say so, and wait until the hub knows who goes on.

    Raises:
        NewGeneration: It does.
        OwnpaceError: It has given up, or says nothing.
    """
    if node.inbox.given_up or not node.restarts:
        raise error
    node.context.reporter.say(Lost(node.inbox.generation, str(error)))
    deadline = time.monotonic() + silence_s() + _WORD_S
    while time.monotonic() < deadline:
        try:
            node.inbox.look(TICK_S)
        except SharedMemoryError:
            continue  # one more word of the same peer
    raise error


def await_plan(node: ProcessNode, counts: NodeCounts, *, is_new: bool, checksums: list[int], stage: int = 0) -> Plan:
    """Tell the hub how far this node is, and wait for its plan."""
    generation = node.inbox.next_generation
    reporter = node.context.reporter
    reporter.report()
    reporter.say(counts.standing(generation, is_new=is_new, checksums=checksums, stage=stage))
    while True:
        plan, _ = node.inbox.wait_for(Plan)
        if plan.generation == generation:
            break
    for name in plan.fresh:
        node.context.mailbox.drop(name)  # another process listens under that name now, elsewhere
    return plan


def forget_lines(node: ProcessNode) -> None:
    """Close the lines of a node that was declared dead; the next words to anybody open new ones.

    The hub has ended its end of the old line, and what is said there now would be lost; of the others, some may have
    been started again meanwhile, and listen elsewhere.
    """
    for name in (HUB, *(each.name for each in node.context.terms.roster().nodes)):
        node.context.mailbox.drop(name)


def await_state(node: ProcessNode, generation: int) -> PlainState:
    """Wait for what the giver gives in this generation; what is left of an earlier attempt is passed over."""
    assembly: StateAssembly | None = None
    while True:
        control, body = node.inbox.wait_for(StateOutline, StateTensor)
        state: PlainState | None = None
        if isinstance(control, StateOutline):
            assembly = StateAssembly() if control.generation == generation else None
            state = None if assembly is None else assembly.begin(control)
        elif assembly is not None and isinstance(control, StateTensor):
            state = assembly.take(control, body)
        if state is not None:
            return state


def give_state(node: ProcessNode, to: str, state: PlainState, generation: int) -> None:
    """Send a state to another node, or to the hub."""
    for packet in packets(state, generation, node.context.layout.size):
        node.context.mailbox.send(to, packet)


def say_farewell(node: ProcessNode) -> list[str]:
    """All that this node had to send is sent; wait until all nodes have come to this."""
    node.context.reporter.report()
    node.context.reporter.say(Finished())
    goodbye, _ = node.inbox.wait_for(Goodbye)
    return goodbye.events


def drive(coroutine: Coroutine[object, None, None]) -> None:
    """Run a coroutine that never suspends to its end."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("an algorithm awaited something that is not from ownpace; it may await only what `me` hands out")
