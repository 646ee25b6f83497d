"""A node's collectives: starting them, asking whether they are over, and reading their results. Awaiting blocks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.errors import MachineDied
from ownpace.core.contract.values import NO_NOTES, Gradient, Group, Notes
from ownpace.core.learning.layer_work import LayerBucket
from ownpace.core.learning.optimizer import SameBits
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.gpu import queued_so_far
from ownpace.engines.process.node.inbox import TICK_S, Inbox
from ownpace.engines.process.node.long_wait import LongWait
from ownpace.engines.process.node.receiving import taken
from ownpace.engines.process.talk.channels import Work, finish
from ownpace.engines.process.talk.collectives import BucketSender, GroupCollectives, SentHeader, Works
from ownpace.engines.process.talk.header import Numbers, Said
from ownpace.engines.process.talk.shared_sums import ahead
from ownpace.engines.progress import Progress

HearSettings = Callable[[Sequence[float], Sequence[float]], None]
"""Takes the optimizer settings that the members of a sum agreed on, and this member's own when it contributed."""


class NodeSums:
    """This node's collectives."""

    def __init__(
        self,
        context: NodeContext,
        progress: Progress,
        inbox: Inbox,
        settings: Callable[[], Sequence[float]],
        hear_settings: HearSettings,
    ) -> None:
        self.context = context
        self.progress = progress
        self.hear_settings = hear_settings
        self._inbox = inbox
        self._settings = settings
        self._groups: dict[str, GroupCollectives] = {}
        self._long_wait = LongWait(context.clock)

    def of(self, group: Group) -> GroupCollectives:
        """The collectives of a group. The first call meets the other members: all of them must make it."""
        collectives = self._groups.get(group.name)
        if collectives is None:
            context = self.context
            collectives = self._groups[group.name] = GroupCollectives.connect(
                group.name,
                group.members.index(context.address),
                len(group),
                context.layout,
                context.like,
                len(context.roster.shards),
                len(self._settings()),
                context.terms.num_counts,
                len(context.roster.workers),
                context.wiring,
            )
        return collectives

    def all_reduce(self, body: Gradient | Tensor, group: Group) -> ProcessSum:
        """Start the sum of what every member contributes."""
        collectives = self.of(group)
        if isinstance(body, Tensor):
            # A copy: the sum is made in place, and what was passed in is still the algorithm's.
            values = body.detach().clone()
            return self._start("all-reduce", collectives, body, values, collectives.channels.all_reduce)
        buffer = collectives.buffer()
        collectives.values(buffer).copy_(body.total)
        return self.start(collectives, body, buffer)

    def start(
        self, collectives: GroupCollectives, gradient: Gradient, buffer: Tensor, sender: BucketSender | None = None
    ) -> ProcessSum:
        """Start the sum of a gradient that is in a buffer; `sender` may have started some of it already."""
        now = self.context.clock.now()
        stop = self._inbox.wants_stop()
        mine = self._settings()
        if collectives.alone:  # nothing is sent, and nothing waits for a GPU to hand a header back
            result = replace(gradient, contributions=(gradient.as_contribution,))
            return ProcessSum(
                self, "all-reduce", collectives, (), None, gradient.total, now, gradient.notes, False, result, stop,
                settings=mine,
            )  # fmt: skip
        # Who has nothing to sum early says nothing about how long sums take.
        through = 1.0 if sender is None else sender.through()
        settings = mine if collectives.channels.member == 0 else ()
        loss = collectives.put_loss(buffer, gradient)
        header = collectives.header(gradient, stop, now, settings, through, loss_apart=loss is not None, buffer=buffer)
        # Buckets that left during the backward pass are not sent again.
        works = collectives.all_reduce(header, buffer, {} if sender is None else sender.works)
        values = collectives.values(buffer)
        return ProcessSum(
            self, "all-reduce", collectives, [work for each in works.values() for work in each], header, values, now,
            gradient.notes, False, settings=mine, by_bucket=works, loss=loss, own=queued_so_far(values.device),
        )  # fmt: skip

    def reduce(self, body: Gradient | Tensor | None, root: int, group: Group) -> ProcessSum:
        """Start the sum, for one member only."""
        collectives = self.of(group)
        launch = partial(collectives.channels.reduce, root=root)
        begun = self._start("reduce", collectives, body, None, launch)
        begun.only_for = root
        return begun

    def broadcast(self, body: Gradient | Tensor | None, root: int, group: Group) -> ProcessSum:
        """Start sending one member's body to all."""
        collectives = self.of(group)
        return self._start(
            "broadcast", collectives, body, None, partial(collectives.channels.broadcast, root=root), root
        )

    def _start(
        self,
        what: str,
        collectives: GroupCollectives,
        body: Gradient | Tensor | None,
        values: Tensor | None,
        launch: Callable[[Tensor], list[Work]],
        spokesman: int = 0,
    ) -> ProcessSum:
        """Start a collective whose header travels on its own. Of a broadcast, only the root's does."""
        now = self.context.clock.now()
        # A root passes on what it knows from sums it awaited, so that groups that broadcast the same sum end together.
        stop = self.progress.stop if what == "broadcast" else self._inbox.wants_stop()
        gradient = body if isinstance(body, Gradient) else None
        settings = self._settings() if collectives.channels.member == spokesman else ()
        header = collectives.header(gradient, stop, now, settings)
        if values is None:
            if isinstance(body, Tensor):
                values = body.detach().clone()
            else:
                values = collectives.values(collectives.buffer())
                # −0.0: added to it, a layer without a gradient stays one.
                values.fill_(-0.0) if gradient is None else values.copy_(gradient.total)
        # The same order on every member: collectives are matched by order, not by what they carry.
        works = [*launch(header.tensor), *launch(values)]
        noted = NO_NOTES if gradient is None else gradient.notes
        return ProcessSum(self, what, collectives, works, header, values, now, noted, isinstance(body, Tensor))

    def wait(self, works: Iterable[Work], group: str) -> None:
        """Wait for collectives. A node that is not needed any more is released from them."""
        start = self.context.clock.now()

        def tick() -> None:
            self._inbox.tick()
            self._long_wait.look(start)

        try:
            finish(works, group, tick)
        except MachineDied:
            # The hub may have told by now what really happened: that is the better error.
            self._inbox.look(TICK_S)
            self._inbox.tick()
            raise

    def close(self, *, abandon: bool = False) -> None:
        """Leave all groups; `abandon`: do not wait for collectives that are under way."""
        for collectives in self._groups.values():
            collectives.channels.close(abandon=abandon or bool(self.context.orders.alarms))
        self._groups.clear()


@dataclass(slots=True)
class ProcessSum:
    """A collective under way: a sum, a reduce or a broadcast."""

    _sums: NodeSums
    what: str
    _collectives: GroupCollectives
    _works: Sequence[Work]
    _header: SentHeader | None
    """Where the sum of all headers will be; None: nobody else sends one."""
    _values: Tensor
    """And that of all tensors."""
    _came_s: float
    _noted: Notes
    _is_tensor: bool
    _result: Gradient | Tensor | None = None
    _stop: bool = False
    settings: Sequence[float] = ()
    """This member's own, when it contributed."""
    only_for: int | None = None
    """The one member that gets the result of a reduce."""
    loss: Tensor | None = None
    """Where the sum of all losses will be, if that is not in the header."""
    by_bucket: Works = field(default_factory=dict)
    """What brings each bucket of layers, where it comes so."""
    own: Work | None = None
    """What a GPU had still to do for this member's part when it was queued: no wait for others."""
    _said: Said | None = None

    @property
    def done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def __await__(self) -> Generator[object, None, Gradient | Tensor | None]:
        if self._works or self._result is None:
            self._result = self._finish()
        # On every await, not on the first only: nodes that have awaited the same sums must agree on whether to go on.
        if self._collectives.alone:
            # Nobody to agree with: this node's own, but also as they were when it contributed.
            self._sums.hear_settings(self.settings, ())
        if self._stop:
            self._sums.progress.hear(0, True)
        return self._result
        # Never reached: it makes this a generator, which is what `await` needs.
        yield

    def _is_of_all(self, said: Said) -> bool:
        """Whether all workers take part, and both the first and this one still have data.

        A loop whose data has ended steps its scheduler no more: a difference that is no mistake.
        """
        channels, parts = self._collectives.channels, said.contributions
        is_of_all = channels.size == len(self._sums.context.roster.workers)
        return is_of_all and parts[0].samples > 0 and parts[channels.member].samples > 0

    def _finish(self) -> Gradient | Tensor | None:
        if self.own is not None:
            self._sums.wait([self.own], self._collectives.channels.name)
        numbers = self._wait(self._works)
        self._works = ()
        # A member that is not the root of a reduce has leftovers of the sum in its header: there is nothing to read.
        if self.only_for not in (None, self._collectives.channels.member):
            return None
        said = self._collectives.read(numbers, self._noted)
        self._tell(said)
        self._stop = said.stop
        return self._values if self._is_tensor else self._gradient(said)

    def _wait(self, works: Iterable[Work]) -> Numbers:
        """Wait for these, and then for the header, which they bring."""
        context, collectives = self._sums.context, self._collectives
        assert self._header is not None
        start = context.clock.now()
        with collectives.beside():  # the header is read at once, not after all that a GPU has still to compute
            self._sums.wait(works, collectives.channels.name)
            numbers = self._header.numbers
        context.reporter.waited(self.what, start)
        return numbers

    def _tell(self, said: Said) -> None:
        """Record that it is over."""
        context, channels = self._sums.context, self._collectives.channels
        if context.reporter.detail and channels.member == 0:
            begun, end = max(self._came_s, said.last_came_s), context.clock.now()
            event = events.Transfer(min(begun, end), end, self.what, channels.name, self._values.nbytes)
            context.reporter.event(event)

    def _gradient(self, said: Said) -> Gradient:
        if said.settings:
            self._sums.hear_settings(said.settings, self.settings if self._is_of_all(said) else ())
        contributions = () if self.what == "broadcast" else said.contributions
        return Gradient(
            self._values,
            said.samples,
            said.versions,
            said.loss if self.loss is None else self.loss,
            said.seconds,
            said.notes,
            contributions,
            said.partial,
            said.counts,
            sources=said.sources,
        )

    # ---- a sum that is used as its layers arrive ----

    @property
    def comes_by_layer(self) -> bool:
        """Whether it comes in several buckets."""
        return bool(self.by_bucket) and len(self.buckets) > 1

    @property
    def buckets(self) -> Sequence[LayerBucket]:
        """Of layers, the lowest first."""
        return self._collectives.buckets[::-1]

    @property
    def same_bits(self) -> SameBits:
        """Where those who step with it have to get the same bits."""
        return "on one GPU" if self._collectives.channels.within_gpu else "everywhere"

    def whole(self) -> Gradient:
        """The sum, a gradient's, waited for here and now; or, on a GPU that all share, by what is queued next."""
        if self._goes_ahead:
            self._works, self.own = ahead(self._works), None
        gradient = taken(self)
        assert isinstance(gradient, Gradient)
        return gradient

    @property
    def _goes_ahead(self) -> bool:
        """Whether a GPU waits, and Python does not: where a death ends the run, since that GPU would wait for ever."""
        return not self._sums.context.orders.goes_on

    def begin(self) -> Gradient:
        """Wait for what goes with the sum, which comes with its lowest layers; the numbers are not all there."""
        said = self._collectives.read(self._wait(self._collectives.header_of(self.by_bucket)), self._noted)
        self._collectives.learn(said)
        self._said = said
        self._stop = said.stop
        if said.stop:
            self._sums.progress.hear(0, True)
        return self._gradient(said)

    def _bringing(self, number: int) -> list[Work]:
        return self.by_bucket[len(self.buckets) - 1 - number]

    def has_come(self, number: int) -> bool:
        """Whether one of the buckets is there."""
        return all(work.is_completed() for work in self._bringing(number))

    def bring(self, number: int) -> Tensor:
        """Wait for one of the buckets: the sum there."""
        bucket = self.buckets[number]
        reporter, now = self._sums.context.reporter, self._sums.context.clock.now()
        # Also where it has come: only then does a GPU's stream know that what follows has to wait for it.
        works = self._bringing(number)
        self._sums.wait(ahead(works) if self._goes_ahead else works, self._collectives.channels.name)
        reporter.waited("layers", now)
        if number == len(self.buckets) - 1 and self._said is not None:
            self._tell(self._said)
        return self._values[bucket.start : bucket.stop]
