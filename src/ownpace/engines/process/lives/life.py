"""How a node lives through the generations of a complete run: the same for workers, servers and communicators.

In each generation it runs its coroutine once, from the beginning. When the hub says that a new one begins, whatever it
is doing is abandoned, wherever it waits or looks; when a peer is gone, it says so and waits for the hub's word.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

from torch.distributed import DistNetworkError

from ownpace.core.contract.errors import Interrupted, PeerLost, SharedMemoryError
from ownpace.core.contract.values import Address
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.exchange import NodeCounts
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.meet.environment import silence_s
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.inbox import TICK_S, NewGeneration
from ownpace.engines.process.node.nodes import ProcessNode
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.talk.control import Finished, Goodbye, Prepared
from ownpace.engines.process.talk.regrouping import Lost, RegroupPlan
from ownpace.engines.process.talk.store import store_is_gone
from ownpace.engines.roster import Roster

LOSSES = (PeerLost, SharedMemoryError, DistNetworkError)
"""What a node suffers from when another one dies, or who keeps the store: by itself no reason to end."""
_WORD_S = 30.0
"""How much longer than a silence may last a node waits for the hub's word."""
N = TypeVar("N", bound=ProcessNode)


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

    Raises:
        Interrupted: A signal asked this process to end, and the others go on.
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
        except Interrupted:
            member.node.sums.close(abandon=True)  # the others have left them, or are about to
            raise


def await_word(node: ProcessNode, loss: Exception) -> None:
    """A peer is gone, it seems: say so, and wait until the hub knows who goes on.

    Raises:
        NewGeneration: It does.
        OwnpaceError: It has given up, or says nothing.
    """
    error = store_is_gone(loss) if isinstance(loss, DistNetworkError) else loss
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


def await_plan(
    node: ProcessNode, counts: NodeCounts, *, is_new: bool, checksums: list[int], stage: int = 0
) -> RegroupPlan:
    """Tell the hub how far this node is, and wait for its plan."""
    generation = node.inbox.next_generation
    reporter = node.context.reporter
    reporter.report()
    reporter.say(counts.standing(generation, is_new=is_new, checksums=checksums, stage=stage))
    while True:
        plan, _ = node.inbox.wait_for(RegroupPlan)
        if plan.generation == generation:
            break
    for name in plan.fresh:
        node.context.mailbox.drop(name)  # another process listens under that name now, elsewhere
    return plan


def await_regrouping(node: ProcessNode) -> NoReturn:
    """The others train: say that this node is ready to join them, and wait until they let it in.

    Raises:
        NewGeneration: They do.
    """
    node.restarts = True
    node.context.reporter.say(Prepared())
    while True:
        node.inbox.look(TICK_S)


def next_node(
    before: N,
    plan: RegroupPlan,
    session: Session,
    connection: Connection,
    make: Callable[[NodeContext], N],
    look: Callable[[], None],
    *,
    evaluates: bool = True,
) -> N:
    """What a process is in the generation that is planned; `look` is called while its groups wait for others."""
    roster = session.terms.roster(plan.workers)
    address = roster.by_name[before.address.name]
    gone = before.context.roster.by_name.keys() - roster.by_name.keys()
    connection.leave(before.context.generation, someone_died=bool(gone or plan.fresh))
    node = make(
        connection.context(
            session.terms,
            roster,
            address,
            before.context.like,
            session.orders,
            is_evaluated=evaluates and is_evaluated(address, roster),
            generation=plan.generation,
            on_wait=look,
        )
    )
    node.restarts = True
    node.hear_rounding(unlike=plan.round_unlike)
    node.progress.budget = math.inf if plan.budget is None else plan.budget
    return node


@contextmanager
def until_started(node: ProcessNode, start: Callable[[], None], give_up: Callable[[], None]) -> Iterator[None]:
    """What a node does until its generation has started; then `start`. If it does not come to that, `give_up`."""
    try:
        yield
    except BaseException:
        # If the hub has started it for all, it counts, even if the next one begins before this node has noticed.
        (start if node.inbox.has_started(node.context.generation) else give_up)()
        raise
    start()


def is_evaluated(address: Address, roster: Roster) -> bool:
    """Whether this node's parameters are evaluated: a server's or, where there is none, the first worker's."""
    return address.role == "server" or (address.role == "worker" and address.index == 0 and not len(roster.servers))


def forget_lines(node: ProcessNode) -> None:
    """Close the lines of a node that was declared dead; the next words to anybody open new ones.

    The hub has ended its end of the old line, and what is said there now would be lost; of the others, some may have
    been started again meanwhile, and listen elsewhere.
    """
    for name in (HUB, *(each.name for each in node.context.terms.roster().nodes)):
        node.context.mailbox.drop(name)


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
