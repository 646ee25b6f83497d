"""The nodes of a run on real processes: they answer what `core.asking` says an algorithm may ask for.

One process is one node, and runs one coroutine. Awaiting blocks: nothing else has to happen here meanwhile, so the
coroutine never suspends (but in a user's own loop, which computes the gradients: `ownpace.join`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import MachineDied
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Body, Contribution, Gradient, Group, Message, Parameters
from ownpace.core.learning.flat import Layout
from ownpace.engines.process.node.awaitables import TICK_S, Received, Reduced, Released, Sent
from ownpace.engines.process.node.parameters import Holding
from ownpace.engines.process.node.reporter import Books, WallClock
from ownpace.engines.process.talk.collectives import Ring, Wiring, finish
from ownpace.engines.process.talk.mailbox import Post
from ownpace.engines.process.talk.wire import Limits, Packet, unpack
from ownpace.engines.roster import Roll

B = TypeVar("B", Gradient, Tensor)
LOOK_EVERY_S = 0.005
"""How often a busy node looks whether it is told to stop."""
_SHORT_S = 2e-5
"""A wait that is shorter than this is none."""


@dataclass(frozen=True)
class Seat:
    """What a node is given to work with."""

    address: Address
    roll: Roll
    layout: Layout
    like: Tensor
    """An empty tensor of the parameters' type and device."""
    post: Post
    wiring: Wiring
    clock: WallClock
    books: Books
    budget: float
    """Samples after which training is over."""
    deadline_s: float
    eval_every: float
    lr_factor: Callable[[float], float]
    alarms: Sequence[str]
    """What this process was told to give up for, as soon as somebody looks."""
    stops: Sequence[str]
    """Signals that asked this process to come to an end."""
    leads: bool
    """Whether this node's parameters, among those of all replicas, are the ones that are judged and saved."""


class ProcessNode:
    """What workers, servers and communicators share: letters, collectives, and knowing when to stop."""

    def __init__(self, seat: Seat) -> None:
        self.address = seat.address
        self.name = seat.address.name
        self._seat = seat
        self._roll = seat.roll
        self._clock = seat.clock
        self._books = seat.books
        self._limits = Limits(seat.roll.shards or (seat.roll.workers.members[0].shard,), seat.layout.size)
        self._mailbox: deque[Message] = deque()
        self._receiving: list[Received] = []
        self._rings: dict[str, Ring] = {}
        self._samples = 0
        self._budget = seat.budget
        self._stop = False
        self._told_to_stop = False
        self._next_look_s = 0.0
        self._released = False
        self._controls: deque[dict[str, Any]] = deque()

    @property
    def workers(self) -> Group:
        return self._roll.workers

    @property
    def servers(self) -> Sequence[Address]:
        return self._roll.servers

    @property
    def communicators(self) -> Group:
        return self._roll.communicators

    @property
    def subgroup(self) -> Group:
        return self._roll.subgroup(self.address)

    @property
    def training(self) -> bool:
        return self._samples < self._budget and not self._stop

    @property
    def wants_stop(self) -> bool:
        """Whether this node has reason to end the run; the others hear of it with what it sends next."""
        now = self._clock.now()
        if now >= self._next_look_s:
            self._next_look_s = now + LOOK_EVERY_S
            if self._seat.post.waiting:
                self.sort_mail(0.0)
        if self._seat.stops:
            self._told_to_stop = True
        return self._told_to_stop or self._stop or now >= self._seat.deadline_s

    # ---- letters ----

    def send(self, to: Address, body: Body) -> Sent:
        self._settle()
        packet = Packet(body, self._samples, self.wants_stop, self._clock.now(), tuple(self._rates()))
        self._seat.post.send(to.name, packet)
        return Sent()

    def _rates(self) -> Sequence[float]:
        return ()

    def receive(self, sender: Address | None = None) -> Received:
        self._settle()
        received = Received(self, sender)
        for message in self._mailbox:
            if sender is None or message.sender is sender:
                self._mailbox.remove(message)
                received.message = message
                return received
        self._receiving.append(received)
        return received

    def sort_mail(self, timeout_s: float | None) -> None:
        """Take in every letter there is; wait for one, if there is none, but not longer than that."""
        if self._seat.alarms:
            raise MachineDied(self._seat.alarms[0])
        while (letter := self._seat.post.receive(timeout_s)) is not None:
            timeout_s = 0.0
            name, frames = letter
            packet = unpack(frames, self._limits)
            if packet.control is not None:
                self._heed({**packet.control, "body": packet.body})
            else:
                self._deliver(name, packet)

    def _heed(self, control: Any) -> None:
        if control["what"] == "stop":
            self._told_to_stop = True
        elif control["what"] == "failed":
            raise MachineDied(f"somebody is gone, and the run with it: {control['message']}")
        elif control["what"] == "release":
            self._released = True
        else:
            self._controls.append(control)

    def control(self, what: str) -> dict[str, Any]:
        """The hub's next word of that kind."""
        while True:
            for control in self._controls:
                if control["what"] == what:
                    self._controls.remove(control)
                    return control
            self.sort_mail(TICK_S)

    def await_farewell(self) -> list[str]:
        """Wait until everybody has ended; returns the lines of what the run came to."""
        lines: list[str] = self.control("bye")["events"]
        return lines

    def _deliver(self, name: str, packet: Packet) -> None:
        sender = self._roll.by_name[name]
        now = self._clock.now()
        if self._books.detail and now > 0:
            nbytes = 0 if packet.body is None else packet.body.nbytes
            self._books.event(events.Transfer(min(packet.sent_s, now), now, "send", [name, self.name], nbytes))
        if packet.rates:
            self._hear_rates(packet.rates)
        body = packet.body
        if body is not None:
            body = _on(body, self._seat.like.device)
        message = Message(sender, body, packet.samples, packet.stop)
        for received in self._receiving:
            if received.sender is None or received.sender is sender:
                self._receiving.remove(received)
                received.message = message
                return
        self._mailbox.append(message)

    def _hear_rates(self, rates: Sequence[float]) -> None:
        pass

    # ---- collectives ----

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Reduced:
        self._settle()
        ring = self.ring(group or self._roll.workers)
        if isinstance(body, Tensor):
            return self._reduced("all-reduce", ring, body, ring.all_reduce_tensors)
        assert isinstance(body, Gradient)
        buffer = ring.buffer()
        ring.values(buffer).copy_(body.total)
        return self._start_reduced(ring, body, buffer)

    def _start_reduced(self, ring: Ring, body: Gradient, buffer: Tensor, works: Sequence[Any] = ()) -> Reduced:
        if ring.size == 1:
            return self._sum_of_one(ring, body)
        now = self._clock.now()
        header = ring.header(body, self.wants_stop, now, self._rates())
        works = [*works, *ring.all_reduce(header, buffer, launched=len(works))]
        return Reduced(self, "all-reduce", ring, works, header, buffer, now)

    def _sum_of_one(self, ring: Ring, body: Gradient) -> Reduced:
        """Alone, the sum is what there is: nothing is sent, and nobody waits for a card to read a header back."""
        contributions = (Contribution(body.samples, body.seconds),)
        alone = replace(body, contributions=contributions)
        return Reduced.known(self, ring, alone, self.wants_stop)

    def reduce(self, body: B | None, to: Address, group: Group) -> Reduced:
        self._settle()
        ring, root = self.ring(group), group.members.index(to)
        return self._reduced("reduce", ring, body, lambda tensors: ring.reduce(tensors, root), root)

    def broadcast(self, body: B | None, root: Address, group: Group) -> Reduced:
        self._settle()
        ring, index = self.ring(group), group.members.index(root)
        return self._reduced("broadcast", ring, body, lambda tensors: ring.broadcast(tensors, index), index)

    def _reduced(
        self,
        what: str,
        ring: Ring,
        body: Gradient | Tensor | None,
        start: Callable[[Sequence[Tensor]], list[Any]],
        root: int | None = None,
    ) -> Reduced:
        now = self._clock.now()
        # A root passes on what it knows from sums it awaited: so groups that broadcast the same sum end together.
        stop = self._stop if what == "broadcast" else self.wants_stop
        header = ring.header(body, stop, now, self._rates())
        if isinstance(body, Tensor):
            values = body.detach().clone()
        else:
            values = ring.values(ring.buffer())
            if body is None:
                values.zero_()
            else:
                values.copy_(body.total)
        works = start([header, values])
        reduced = Reduced(self, what, ring, works, header, values, now)
        reduced.is_tensor = isinstance(body, Tensor)
        reduced.root = root
        return reduced

    def ring(self, group: Group) -> Ring:
        """This node's place in a group's collectives."""
        ring = self._rings.get(group.name)
        if ring is None:
            seat = self._seat
            ring = self._rings[group.name] = Ring(
                group.name,
                group.members.index(self.address),
                len(group),
                seat.layout,
                seat.like,
                max(1, len(self._roll.shards)),
                seat.wiring,
                len(self._rates()),
            )
        return ring

    def close(self) -> None:
        """Leave all groups."""
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def wait_for(self, works: Sequence[Any], group: str) -> None:
        """Wait for a collective. Who need not be there any more is released from it."""
        try:
            finish(works, group, self._tick)
        except MachineDied:
            self.sort_mail(TICK_S)
            self._tick()
            raise

    def _tick(self) -> None:
        self.sort_mail(0.0)
        if self._released:
            raise Released

    def waited(self, what: str, start: float) -> None:
        """Note that this node had nothing to do since `start`."""
        now = self._clock.now()
        if self._books.detail and now - start > _SHORT_S:
            self._books.event(events.Wait(start, now, self.name, what))
        self._books.maybe_report(now)

    def take_in(self, samples: int, stop: bool) -> None:
        """Hear of the run's progress."""
        if samples > self._samples and self.address.role != "server":  # a server counts its own updates
            self._samples = samples
        if stop:
            self._stop = True

    def _settle(self) -> None:
        """Do what was asked for and not awaited yet, because something is asked for that may depend on it."""


class ProcessLearner(ProcessNode):
    """A node with parameters: all of them, or a server's shard."""

    def __init__(self, seat: Seat, holding: Holding) -> None:
        super().__init__(seat)
        self.holding = holding
        self._version = 0
        self._ahead = 0.0  # by how many samples the schedule is further than the count
        self._next_eval = seat.eval_every

    @property
    def parameters(self) -> Parameters:
        return Parameters(self.holding.snapshot(), self._version, self.address.shard)

    @property
    def lr(self) -> float:
        return self.holding.lr * self._lr_factor(1.0)

    def _lr_factor(self, scale: float) -> float:
        return self._seat.lr_factor(self._samples + self._ahead) * scale

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        if not gradient.samples:
            return
        self._settle()
        self._maybe_freeze()
        self.holding.step(gradient, self._lr_factor(lr_scale), memory)
        if advance is not None:
            self._ahead += advance - gradient.samples
        self._made_update(gradient)

    def _made_update(self, gradient: Gradient) -> None:
        self._version += 1
        self._samples += gradient.samples
        self._count(gradient)

    def _count(self, gradient: Gradient) -> None:
        now, seat, stats = self._clock.now(), self._seat, self._books.stats
        staleness = self._version - 1 - gradient.versions[0]
        if not stats.frozen:
            stats.updates, stats.samples, stats.t = self._version, self._samples, now
            stats.staleness_sum += staleness
            stats.staleness_max = max(stats.staleness_max, staleness)
            stats.frozen = self._samples >= seat.budget
        if self._books.detail:
            update = events.Update(now, self.name, self._version, gradient.samples, self._samples, staleness)
            self._books.event(update)
        if self._samples >= self._next_eval:
            self._next_eval = (self._samples // seat.eval_every + 1) * seat.eval_every
            self.show(now)
        self._books.maybe_report(now)

    def _maybe_freeze(self) -> None:
        """Close the sums if the run's time is up: what follows is only the end of what was in flight."""
        stats, now = self._books.stats, self._clock.now()
        if not stats.frozen and (now >= self._seat.deadline_s or self._told_to_stop):
            stats.t = min(now, self._seat.deadline_s)
            stats.frozen = True

    def show(self, now: float, *, final: bool = False) -> None:
        """Let the hub judge the parameters as they are now."""
        if self._seat.leads or self.address.role == "server":
            self._books.say(
                "snapshot",
                self.holding.snapshot(),
                t=now,
                samples=self._samples,
                updates=self._version,
                shard=self.address.shard.index,
                final=final,
            )

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        values = self.holding.peek(gradient, self._lr_factor(lr_scale))
        return Parameters(values, self._version, self.address.shard)


class ProcessServer(ProcessLearner):
    """A parameter server."""

    def _heed(self, control: Any) -> None:
        if control["what"] == "pull":  # what the user's own loop asks for, outside of the algorithm
            body = self.holding.snapshot()
            answer = {"what": "pulled", "shard": self.address.shard.index, "version": self._version}
            self._seat.post.send(control["who"], Packet(body, control=answer))
        else:
            super()._heed(control)

    def _hear_rates(self, rates: Sequence[float]) -> None:
        self.holding.set_rates(rates)


class ProcessCommunicator(ProcessNode):
    """A node that only moves data."""


class ProcessWorker(ProcessLearner):
    """A worker, but for how it computes its gradients."""

    def __init__(self, seat: Seat, holding: Holding, batch_size: int, micro_batch: int) -> None:
        super().__init__(seat, holding)
        self.batch_size = batch_size
        self.micro_batch = micro_batch
        self._versions = (0,) * max(1, len(self._roll.shards))

    @property
    def rank(self) -> int:
        return self.address.index

    def no_gradient(self) -> Gradient:
        return Gradient(torch.zeros_like(self.holding.values), 0, self._versions, 0.0)

    def place(self, parameters: Parameters) -> None:
        self._settle()
        self.holding.place(parameters.values, parameters.shard)
        index = parameters.shard.index
        self._versions = (*self._versions[:index], parameters.version, *self._versions[index + 1 :])
        self._version = min(self._versions)
        if self._samples >= self._next_eval:
            self._next_eval = (self._samples // self._seat.eval_every + 1) * self._seat.eval_every
            self.show(self._clock.now())

    def _made_update(self, gradient: Gradient) -> None:
        super()._made_update(gradient)
        self._versions = (self._version,) * len(self._versions)

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        if gradient.samples:
            self._settle()
            self.holding.step(gradient, self._lr_factor(lr_scale))

    def commit(self, values: Tensor, work: Gradient) -> None:
        if work.samples:
            self._settle()
            self._maybe_freeze()
            self.holding.overwrite(values)
            self._made_update(work)

    def _rates(self) -> Sequence[float]:
        return self.holding.rates()

    def versions_at(self, at: Parameters | None) -> tuple[int, ...]:
        """The versions of the parameters that a gradient is computed at."""
        return self._versions if at is None else (at.version,) * len(self._versions)


def _on(body: Body, device: torch.device) -> Body:
    """The same body on this device."""
    if device.type == "cpu" or body is None:
        return body
    if isinstance(body, Gradient):
        body.total = body.total.to(device)
    elif isinstance(body, Parameters):
        body.values = body.values.to(device)
    else:
        return body.to(device)
    return body


def shared_counter(store: dist.Store, name: str) -> Callable[[int], int]:
    """A count that all processes share: adds to it, and returns what it was before."""
    return lambda number: int(store.add(name, number)) - number
