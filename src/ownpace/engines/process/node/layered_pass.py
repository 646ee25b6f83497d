"""One gradient of a task, layer by layer: parameters are waited for where they are needed, gradients leave when they
are ready, and a prescribed pace is kept by each bucket of layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ownpace.core.contract.values import Address, Gradient, Notes, Parameters, Shard
from ownpace.core.learning.layer_work import FORWARD_SHARE, LayerBucket
from ownpace.engines.layer_times import LayerTimes
from ownpace.engines.process.node.receiving import ProcessReceive
from ownpace.engines.process.node.unfinished import UnfinishedStep
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.collectives import BucketSender, GroupCollectives
from ownpace.engines.processor import Processor

Push = tuple[Address, Notes]
"""To whom a gradient goes, with what."""


@dataclass
class LayerPace:
    """The prescribed times of one gradient, bucket by bucket; without a prescription, all are in the past."""

    processor: Processor | None
    times: LayerTimes
    ready_s: float
    """When it may begin."""
    work_s: float
    """How long it takes an undisturbed machine."""
    end_s: float = 0.0
    """Until when what was begun takes; at last, the whole gradient."""
    _backward_s: float = 0.0

    def go_forward(self, bucket: LayerBucket, come_s: float) -> None:
        """The forward pass goes through these layers, which came at that time."""
        if self.processor is not None:
            ready_s = max(self.ready_s, come_s)
            self.end_s = self.processor.spend(ready_s, self.work_s * self.times.forward(bucket))[1]

    def turn(self) -> None:
        """The backward pass begins."""
        self._backward_s = self.end_s
        if self.processor is not None:
            self.end_s = self.processor.spend(self.end_s, self.work_s * (1 - FORWARD_SHARE))[1]

    def ready(self, bucket: LayerBucket) -> float:
        """When the backward pass has these layers."""
        if self.processor is None:
            return 0.0
        return self.processor.partway(self._backward_s, self.end_s, self.times.backward_done(bucket))


class ForwardPass:
    """Goes through the layers of a forward pass, and waits for those that have not come: of servers, or of a sum."""

    def __init__(
        self,
        worker: ProcessWorker,
        arriving: Sequence[ProcessReceive],
        pace: LayerPace,
        keep: Callable[[float], None],
        *,
        at: Parameters | None = None,
    ) -> None:
        """`at`: another point than the worker's parameters; nothing is waited for then."""
        self._worker = worker
        self._arriving = {received.sender.shard.index: received for received in arriving if received.sender is not None}
        self._pace = pace
        self._keep = keep
        self._unfinished = worker.learner.unfinished if at is None else None
        self._left = deque(
            (shard, part, bucket)
            for shard in worker.context.roster.shards
            for part, bucket in enumerate(pace.times.buckets(shard))
        )
        if self._unfinished is not None:  # as the sum comes
            shard = worker.context.roster.shards[0]
            self._left = deque((shard, part, bucket) for part, bucket in enumerate(self._unfinished.buckets))
        self.waited_s = 0.0
        """How long it has waited for layers."""
        self.values = self._room(worker, arriving)
        """Where layers are put as they come, and read."""

    def _room(self, worker: ProcessWorker, arriving: Sequence[ProcessReceive]) -> Tensor:
        if self._unfinished is not None:
            return self._unfinished.values
        return worker.learner.held.room() if arriving else worker.learner.held.values

    @property
    def waits(self) -> bool:
        """Whether there may be something to wait for."""
        return bool(self._arriving) or self._unfinished is not None

    def need(self, layer: int) -> None:
        """This layer and all below it are about to be used."""
        while self._left and self._left[0][2].layers.start <= layer:
            self._go_through(*self._left.popleft())

    def _go_through(self, shard: Shard, part: int, bucket: LayerBucket) -> None:
        self._keep(self._pace.end_s)  # the time of the layers below
        received, come_s = self._arriving.get(shard.index), 0.0
        if self._unfinished is not None:
            come_s = self._step(self._unfinished, bucket)
        elif received is not None:
            come_s = self._await(received, part)
            assert received.come is not None
            values = received.come.message.parameters.values
            self.values[bucket.start : bucket.stop] = values[bucket.start - shard.start : bucket.stop - shard.start]
        self._pace.go_forward(bucket, come_s)

    def _step(self, unfinished: UnfinishedStep, bucket: LayerBucket) -> float:
        """Make the step of a bucket; returns when its sum came, if that was not before."""
        clock = self._worker.context.clock
        since, was_there = clock.now(), unfinished.has_come(bucket)
        unfinished.need(bucket.layers.stop - 1)
        now = clock.now()
        # Stepping is no computing of a gradient either. A GPU computes the layers below meanwhile: its own time counts,
        # with what it waits, which is the same for all workers.
        if self.values.device.type == "cpu":
            self.waited_s += now - since
        return 0.0 if was_there else now

    def _await(self, received: ProcessReceive, part: int) -> float:
        """Wait for a bucket; returns when it came, if that was not before."""

        def is_there() -> bool:
            come = received.come
            return come is not None and (come.parts is None or come.parts.arrived[part])

        inbox, clock = self._worker.inbox, self._worker.context.clock
        if not is_there():
            inbox.look(0.0)
        if is_there():
            return 0.0
        since = inbox.block(is_there)
        now = clock.now()
        self._worker.context.reporter.waited("layers", since)
        self.waited_s += now - since
        return now

    def finish(self) -> None:
        """The forward pass is over: all layers are there."""
        if self._left:
            self.need(self._left[-1][2].layers.stop - 1)
        if self._unfinished is not None:
            self._unfinished.finish()
        placed: list[Parameters] = []
        for received in self._arriving.values():
            assert received.come is not None
            # The gradient has waited for this message, so what its sender knew is known here.
            self._worker.inbox.took(received.come)
            placed.append(received.come.message.parameters)
        self._worker.learner.has_placed(placed)
        self._keep(self._pace.end_s)
        self._pace.turn()


@dataclass
class BackwardPass:
    """Sends each bucket of layers as soon as the backward pass has it, to the node that it goes to."""

    worker: ProcessWorker
    pushes: Sequence[Push]
    total: Tensor
    """The gradient, as it comes about."""
    describe: Callable[[], Gradient]
    """What is known of it so far, but for its values."""
    pace: LayerPace
    keep: Callable[[float], None]
    _ready: set[int] = field(default_factory=set)
    _left: dict[int, list[LayerBucket]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, (to, _) in enumerate(self.pushes):
            self._left[number] = list(self.pace.times.buckets(to.shard))

    def layer_is_there(self, index: int) -> None:
        """One more layer has its gradient."""
        self._ready.add(index)
        for number, left in self._left.items():
            # The highest first: the lowest one says all, and completes the message.
            while left and self._ready.issuperset(left[-1].layers):
                self._send(number, left.pop(), len(left))

    def _send(self, number: int, bucket: LayerBucket, part: int) -> None:
        to, notes = self.pushes[number]
        self.keep(self.pace.ready(bucket))
        known, num_parts = self.describe(), len(self.pace.times.buckets(to.shard))
        known.total = self.total[bucket.start : bucket.stop]
        if len(known.versions) > 1:
            known.versions = (known.versions[to.shard.index],)
        self.worker.post(to, known, notes, part, num_parts)


class LeavingBuckets:
    """A gradient that is summed while it is computed."""

    def __init__(self, collectives: GroupCollectives, buffer: Tensor, num_layers: int) -> None:
        self._parts = collectives, buffer, num_layers
        self.values = collectives.values(buffer)
        """Where it is computed."""
        self.sender: BucketSender | None = None

    def begin(self, keep_pace: Callable[[LayerBucket], None]) -> Callable[[int], None]:
        """What to call with each layer that is there; a bucket leaves after its prescribed time."""
        self.sender = BucketSender(*self._parts, keep_pace)
        return self.sender.layer_is_there
