"""What arrives at a node: messages of the algorithm, control messages, and the word to stop.

A message belongs to the generation of the run in which it was sent, and there to a loop of a user's script. Older ones
are dropped; a newer one waits until this node has come to that. To a generation, the hub leads; a loop begins at a
server or communicator with the first message of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ownpace.core.contract.errors import Interrupted, PeerLost, ReplicasDiffer, WireError
from ownpace.core.contract.values import Address, Body, Gradient
from ownpace.core.learning.layer_work import layer_buckets
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.deliveries import Deliveries
from ownpace.engines.process.node.receiving import Come, ProcessReceive
from ownpace.engines.process.node.reporter import HUB
from ownpace.engines.process.talk.control import (
    ClockAnswer,
    Control,
    Dismiss,
    GiveUp,
    Goodbye,
    Refuse,
    Release,
    Start,
    Stop,
    Welcome,
)
from ownpace.engines.process.talk.links import PrescribedLink
from ownpace.engines.process.talk.regrouping import DeclaredDead, Regroup, RegroupPlan
from ownpace.engines.process.talk.wire import Packet, blamed, unpack_from
from ownpace.engines.process.talk.wire_header import Limits
from ownpace.engines.progress import Progress

C = TypeVar("C", bound=Control)
_OF_HUB = (
    *(Welcome, Refuse, ClockAnswer, Start, Stop, Dismiss, Release, Goodbye, GiveUp),
    *(Regroup, RegroupPlan, DeclaredDead),
)
TICK_S = 0.2
"""How long a wait lasts before signals and alarms are checked."""
_LOOP_BITS = 32
LOOK_EVERY_S = 0.05
"""How often a busy node checks whether it has been told to stop."""


class Released(BaseException):
    """The last worker has ended: servers and communicators may end."""


class NewGeneration(BaseException):
    """A newer generation is about to begin: what this node is doing belongs to an older one."""


class NewLoop(BaseException):
    """A message came that belongs to the next loop of a user's script, in the same generation."""


class Listener(Protocol):
    """The node behind an inbox."""

    restarts: bool
    """Whether a newer generation ends what the node does."""

    def hear_settings_of_message(self, settings: Sequence[float]) -> None:
        """A message was awaited, and these are its sender's optimizer settings."""

    def hear_control(self, sender: str, control: Control, body: Body) -> bool:
        """Take a control message; returns whether it was one for this node."""


class Inbox:
    """Sorts what arrives at one node."""

    def __init__(
        self, context: NodeContext, progress: Progress, listener: Listener, before: Inbox | None = None
    ) -> None:
        """`before`: the inbox of this node's last generation; what the hub has said since is here, too."""
        self._context = context
        self._progress = progress
        self._listener = listener
        address = context.address
        own = address.shard if address.role == "server" else None
        sizes = {
            shard.index: tuple(bucket.stop - bucket.start for bucket in layer_buckets(context.layout, shard))
            for shard in context.roster.shards
        }
        self._limits = Limits(
            context.roster.shards, context.layout.size, context.like.dtype, len(context.terms.workers), own, sizes
        )
        self._deliveries = Deliveries(context, sizes, None if own is None else own.index)
        links = context.terms.links
        self.link = None if links is None else PrescribedLink(links, context.address)
        """Where bandwidths are prescribed."""
        self._controls: deque[tuple[Control, Body]] = deque() if before is None else before._controls
        self._early: list[tuple[str, Packet]] = []
        self._next_look_s = 0.0
        self.generation = context.generation
        self.loop = 0
        """Of a user's script: how many have begun."""
        self.next_generation: int = self.generation if before is None else before.next_generation
        """The newest that the hub has spoken of."""
        self.heeds_loops = False
        """Whether a message of a newer loop ends what this node does. Not before a server or communicator works: one of
        the workers may have heard of the start before it, and have begun a loop."""
        self.released = False
        self.told_to_stop = False
        self.ends_for_good = False
        """Whether that is the end of the run, and not of a generation alone."""
        self.declared_dead = False
        self.given_up = False
        """Whether the hub has given up the run."""

    @property
    def stamp(self) -> int:
        """The mark of what is sent now: its generation, and there its loop."""
        return self.generation << _LOOP_BITS | self.loop

    def begin(self, loop: int) -> None:
        """Begin a loop: what came for it before is here now, and what is left of older ones is gone."""
        # The number first: what was early is delivered below, and must count as of now.
        self.loop = loop
        self.told_to_stop = False
        self._deliveries.clear()
        if self.link is not None:
            self.link.clear()
        early, self._early = self._early, []
        for name, packet in early:
            self._deliver(name, packet)

    def receive(self, sender: Address | None = None) -> ProcessReceive:
        """The next message, from any node or from `sender` alone."""
        received = ProcessReceive(self, sender)
        self._deliveries.give(received)
        return received

    def look(self, timeout_s: float | None) -> None:
        """Take in every message that has arrived; if there is none, wait for one, at most this long.

        Raises:
            OwnpaceError: This process has to give up, or the whole run has; or it may leave, as a signal wants.
            NewGeneration: The hub has said that a newer one begins.
            NewLoop: A message came that this helper can only take in a newer loop.
        """
        if (leaving := self._context.orders.leaving()) is not None:
            self._context.reporter.say(leaving)
        # Before messages: a node that has to give up must not wait for one that will never come.
        self._context.orders.raise_alarms()
        if self.link is not None:
            timeout_s = self._look_at_link(self.link, timeout_s)
        while (arrived := self._context.mailbox.receive(timeout_s)) is not None:
            timeout_s = 0.0
            name, packet = arrived[0], unpack_from(*arrived, self._limits)
            if packet.control is not None:
                self._heed(name, packet.control, packet.body)
            else:
                self._deliver(name, packet)
        if self.link is not None:
            self._look_at_link(self.link, 0.0)

    def _look_at_link(self, link: PrescribedLink, timeout_s: float | None) -> float | None:
        """Take in what is due on a prescribed link; returns how long to wait, at most, for what is not."""
        now = self._context.clock.now()
        for sender, packet in link.due(now):
            self._deliveries.take_in(sender.name, packet)
            timeout_s = 0.0
        next_s = link.next_s(now)
        return timeout_s if next_s is None else min(next_s, math.inf if timeout_s is None else timeout_s)

    def tick(self) -> None:
        """Look once, and end a server or communicator that is not needed any more."""
        self.look(0.0)
        if self.released:
            raise Released

    def wants_stop(self) -> bool:
        """Whether this node has reason to end the run; the others hear of it with what it sends next."""
        now = self._context.clock.now()
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_EVERY_S
            if self._context.mailbox.waiting:
                self.look(0.0)
        if self._context.orders.stops and not self._context.orders.leaves:
            self.told_to_stop = True
        return self.told_to_stop or self._progress.stop or now >= self._context.terms.deadline_s

    def has_started(self, generation: int) -> bool:
        """Whether the hub has said that this generation starts."""
        return any(isinstance(control, Start) and control.generation == generation for control, _ in self._controls)

    def wait_for(self, *kinds: type[C]) -> tuple[C, Body]:
        """The next control message of one of these kinds, and what came along with it."""
        while True:
            for entry in self._controls:
                if isinstance(entry[0], kinds):
                    self._controls.remove(entry)
                    return entry[0], entry[1]
            self.look(TICK_S)

    def _heed(self, sender: str, control: Control, body: Body) -> None:
        if isinstance(control, _OF_HUB) and sender != HUB:
            raise blamed(sender, WireError(f"{type(control).__name__}, which only the hub may say"))
        match control:
            case Stop(is_border):
                self.told_to_stop = True
                self.ends_for_good = self.ends_for_good or not is_border
            case Dismiss(signal):
                known = f"interrupted by {signal} at sample {self._progress.samples}"
                raise Interrupted(f"{known}; the others go on without this rank")
            case Release():
                self.released = True
            case Regroup(generation):
                if generation > self.next_generation:
                    self.next_generation = generation
                    if self._listener.restarts:
                        raise NewGeneration
            case DeclaredDead():
                self.declared_dead = True
                if self._listener.restarts:
                    raise NewGeneration
            case GiveUp(ReplicasDiffer.code, message):
                raise ReplicasDiffer(message)  # no rank is to blame, and none only suffers from it
            case GiveUp(message=message):
                self.given_up = True
                raise PeerLost(f"the run has failed: {message}")
            case _:
                if not self._listener.hear_control(sender, control, body):
                    self._controls.append((control, body))

    def _deliver(self, name: str, packet: Packet) -> None:
        if packet.generation < self.stamp:
            return
        if packet.generation > self.stamp:
            # Kept before anything is raised: it may be the first message of the loop that begins now.
            self._early.append((name, packet))
            if self.heeds_loops and packet.generation >> _LOOP_BITS == self.generation:
                raise NewLoop
            return
        sender = self._context.roster.by_name.get(name)
        if sender is None:
            return  # it takes no part in this generation
        self._check_sources(name, packet.body)
        if self.link is None or packet.sent_s < 0:  # before the start, no time has passed on any link
            self._deliveries.take_in(name, packet)
        else:
            self.link.hold(sender, packet)

    def _check_sources(self, name: str, body: Body) -> None:
        """Only now: messages of other generations have the ranks of those, and come whenever a link is back."""
        if isinstance(body, Gradient) and body.sources:
            ranks = [rank for rank, _ in body.sources]
            if max(ranks) >= len(self._context.roster.workers):
                raise blamed(name, WireError(f"samples of the ranks {ranks[:8]} are used up; no node counts so"))

    @property
    def newest_loop(self) -> int:
        """The newest loop of this generation that a message came from."""
        stamps = [packet.generation for _, packet in self._early]
        loops = [stamp - (self.generation << _LOOP_BITS) for stamp in stamps if stamp >> _LOOP_BITS == self.generation]
        return max(loops, default=self.loop)

    def took(self, come: Come, waited_since_s: float | None = None) -> None:
        """A message was awaited: take in what its sender knew of the run's progress, and its optimizer's settings."""
        if waited_since_s is not None:
            self._context.reporter.waited("message", waited_since_s)
        self._progress.hear(come.message.samples, come.message.stop)
        # Now, not when it came: others may have come since, and each gradient is stepped with its sender's settings.
        if come.settings:
            self._listener.hear_settings_of_message(come.settings)

    def block(self, is_there: Callable[[], bool]) -> float:
        """Wait until something has come; returns when the wait began."""
        start = self._context.clock.now()
        # A node that is about to wait reports first: it may wait for long, and the hub would think it silent.
        self._context.reporter.maybe_report(start)
        self.look(0.0)
        while not is_there():
            self.look(TICK_S)
            if self.released:
                raise Released
        return start
