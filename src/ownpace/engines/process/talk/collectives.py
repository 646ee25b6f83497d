"""A group's collectives over gradients: header and tensor in one buffer, sent in buckets.

What a sum carries next to the tensor is in front of it and is summed with it: one transfer, not two. The tensor
goes in several buckets, last layers first, over several channels at once, so that buckets can leave while the
backward pass is still at the first layers, and so that one bucket is summed while another travels. Where sums take
longer than backward passes, another order is better: `engines.sum_order` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from ownpace.core.contract.values import Gradient, Notes
from ownpace.core.learning.layer_work import LayerBucket, sum_buckets
from ownpace.core.learning.layout import Layout
from ownpace.engines.process.talk.channels import Channels, Wiring, Work
from ownpace.engines.process.talk.header import Numbers, Said, SumHeader
from ownpace.engines.process.talk.shared_meeting import SharedMeeting
from ownpace.engines.process.talk.spare_memory import SpareMemory
from ownpace.engines.sum_order import SumOrder

_CHANNELS = 4
_TAIL = 16
"""Numbers in front of the gradient that go along with its lowest layers, where the header does not: 64 bytes, as slots
are aligned."""
HEADER = -1
"""In place of a bucket's number: the header, where it travels on its own."""
Works = dict[int, list[Work]]
"""Collectives under way, by the number of the bucket."""
_NOWHERE = nullcontext()


class SentHeader(NamedTuple):
    """What this member says along with its tensor; after the sum, what all say."""

    tensor: Tensor
    """As it travels: by itself, or at the beginning of this."""
    written: Numbers
    """As it was written: in the same memory, unless that is a GPU's."""

    @property
    def numbers(self) -> Numbers:
        """What is there now."""
        if self.tensor.device.type == "cpu":
            return self.written
        return self.tensor[: len(self.written)].cpu().numpy()


class GroupCollectives:
    """One group's collectives, as one member sees them."""

    def __init__(
        self, channels: Channels, layout: Layout, like: Tensor, buckets: Sequence[LayerBucket], header: SumHeader
    ) -> None:
        self.channels = channels
        self.alone = channels.size == 1
        """Whether the group has one member."""
        self.buckets = buckets
        """The last layers' first."""
        self.order: Sequence[int] = range(len(buckets))
        """In which buckets leave, by their numbers; the same on all members."""
        self._sum_order: SumOrder | None = None
        self._like = like
        self._header = header
        self._spare = SpareMemory(header.size + layout.size, like)
        self._side_stream = torch.cuda.Stream(like.device) if like.device.type == "cuda" else None
        # In half precision a count of samples would be rounded, so there the header travels on its own. And where a
        # sum stays on a GPU: all but the loss is known when it is queued, and can be read without waiting for the GPU.
        self._together = like.dtype in (torch.float32, torch.float64) and not channels.within_gpu

    @classmethod
    def connect(
        cls, name: str, member: int, size: int, layout: Layout, like: Tensor, num_shards: int, num_settings: int,
        num_counts: int, num_workers: int, wiring: Wiring,
    ) -> GroupCollectives:  # fmt: skip
        """Meet the other members."""
        buckets = sum_buckets(layout, like.element_size())
        # Their number follows from the model alone, so it is the same on all members: one channel more would hang.
        nbytes = layout.size * like.element_size()
        meeting = SharedMeeting(name, member, size, nbytes, like) if wiring.backend == "gloo" else None
        channels = Channels(name, member, size, wiring, min(_CHANNELS, len(buckets)), meeting)
        double = like.dtype == torch.float64
        header = SumHeader(member, size, num_shards, num_settings, num_counts, num_workers, double=double)
        return cls(channels, layout, like, buckets, header)

    def beside(self) -> AbstractContextManager[None]:
        """On a GPU, a stream of its own, for what must not wait for queued work; later work waits for it instead."""
        return _NOWHERE if self._side_stream is None else self._on(self._side_stream)

    @contextmanager
    def _on(self, side_stream: torch.cuda.Stream) -> Iterator[None]:
        with torch.cuda.stream(side_stream):
            yield
        torch.cuda.current_stream(self._like.device).wait_stream(side_stream)

    def buffer(self) -> Tensor:
        """Room for a header and a gradient."""
        return self._spare.take()

    def values(self, buffer: Tensor) -> Tensor:
        """The part of a buffer that holds the gradient."""
        return buffer[self._header.size :]

    def header(
        self,
        gradient: Gradient | None,
        stop: bool,
        came_s: float,
        settings: Sequence[float],
        through: float = 0.0,
        *,
        loss_apart: bool = False,
        buffer: Tensor | None = None,
    ) -> SentHeader:
        """What this member says along with its tensor, in its own places; zero everywhere else.

        `buffer`: where the header is to be if it travels together with the tensor.
        """
        on_cpu, size = self._like.device.type == "cpu", self._header.size
        place = buffer if self._together else None
        into = place.numpy()[:size] if on_cpu and place is not None else None
        written = self._header.write(gradient, stop, came_s, settings, through, into)
        tensor = torch.from_numpy(written) if into is None or place is None else place
        if not on_cpu and not self.channels.within_gpu:
            # Not waited for: the sum is queued behind this copy on the same stream.
            tensor = tensor.to(self._like.device, non_blocking=True)
            if place is not None:
                place[:size] = tensor
                tensor = place
        if gradient is not None and isinstance(gradient.loss, Tensor) and not loss_apart:
            tensor[self._header.loss_at] = gradient.loss
        return SentHeader(tensor, written)

    def put_loss(self, buffer: Tensor, gradient: Gradient) -> Tensor | None:
        """Where the sum of all losses will be, if the loss goes along with the tensor and not in the header."""
        if not self.channels.within_gpu:
            return None
        tail = buffer[self._header.size - _TAIL : self._header.size]
        tail.fill_(gradient.loss if gradient.samples else 0.0)  # all of it: one call
        return tail[0]

    def read(self, numbers: Numbers, noted: Notes) -> Said:
        """What all members said."""
        return self._header.read(numbers, noted)

    def all_reduce(self, header: SentHeader, buffer: Tensor, under_way: Works) -> Works:
        """Start the sum of every bucket that is not under way yet; that of the lowest layers takes the header along."""
        works = {number: self.launch(buffer, number) for number in self.order if number not in under_way}
        works = {**under_way, **works}
        return works if self._together else {**works, HEADER: self.channels.all_reduce(header.tensor)}

    def follow(self, ready: Sequence[float]) -> None:
        """Let the order follow how long sums take, from now on. All members must do so.

        `ready`: when a backward pass has each bucket, where 1 is its end.
        """
        if self._sum_order is None:
            self._sum_order = SumOrder(ready, [bucket.stop - bucket.start for bucket in self.buckets])

    def learn(self, said: Said) -> None:
        """Learn from a sum, which all members must do before the next."""
        if self._sum_order is not None:
            self._sum_order.learn(said.through)
            self.order = self._sum_order.order

    @property
    def lowest(self) -> int:
        """The number of the bucket with the lowest layers."""
        return len(self.buckets) - 1

    def header_of(self, works: Works) -> list[Work]:
        """What brings the sum of all headers."""
        return works[self.lowest if self._together else HEADER]

    def launch(self, buffer: Tensor, number: int) -> list[Work]:
        """Start the sum of one bucket; every member must start them in the same order."""
        bucket = self.buckets[number]
        begin = self._header.size + bucket.start
        if number == self.lowest:
            begin = 0 if self._together else self._header.size - _TAIL if self.channels.within_gpu else begin
        # By its place in the order: each channel starts one after the other, and all are used alike.
        return self.channels.all_reduce(buffer[begin : self._header.size + bucket.stop], self.order.index(number))


class BucketSender:
    """Starts the sum of each bucket of a buffer as soon as all of its layers are ready.

    All but the lowest layers', and what comes after them in the order: these carry the header, and leave when
    everything is known.
    """

    def __init__(
        self,
        collectives: GroupCollectives,
        buffer: Tensor,
        num_layers: int,
        keep_pace: Callable[[LayerBucket], None] | None = None,
    ) -> None:
        """`keep_pace`: waits until the prescribed time has come for a bucket to be ready."""
        self._collectives = collectives
        self._buffer = buffer
        self._keep_pace = keep_pace
        self.ready = [False] * num_layers
        self.works: Works = {}
        """Buckets under way."""

    @property
    def launched(self) -> int:
        """How many buckets are under way."""
        return len(self.works)

    def layer_is_there(self, index: int) -> None:
        """One more layer is in the buffer."""
        self.ready[index] = True
        collectives = self._collectives
        # In the order of the buckets, even if a later one is complete first: every member must start them alike.
        for number in collectives.order[len(self.works) :]:
            bucket = collectives.buckets[number]
            if number == collectives.lowest or not all(self.ready[bucket.layers.start : bucket.layers.stop]):
                return
            if self._keep_pace is not None:
                self._keep_pace(bucket)
            self.works[number] = collectives.launch(self._buffer, number)

    def through(self) -> float:
        """How much of the vector has been summed already."""
        # Of a GPU, Python has only queued the backward pass: what is over by now says nothing about the time it takes.
        if self._buffer.device.type != "cpu":
            return 1.0
        buckets = self._collectives.buckets
        done = [n for n, works in self.works.items() if all(work.is_completed() for work in works)]
        return sum(buckets[n].stop - buckets[n].start for n in done) / buckets[0].stop
