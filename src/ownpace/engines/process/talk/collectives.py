"""A group's collectives over gradients: header and tensor in one buffer, sent in buckets.

What a sum carries next to the tensor is in front of it and is summed with it: one transfer, not two. The tensor
goes in several buckets, last layers first, over several channels at once, so that buckets can leave while the
backward pass is still at the first layers, and so that one bucket is summed while another travels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ownpace.core.contract.values import Gradient, Notes
from ownpace.core.learning.flat import Layout
from ownpace.engines.process.talk.channels import Channels, Wiring, Work
from ownpace.engines.process.talk.header import Said, SumHeader
from ownpace.engines.process.talk.spare_memory import SpareMemory

# Large enough that latency hardly counts, small enough that several leave during one backward pass.
_BUCKET_BYTES = 4 << 20
_CHANNELS = 4


class Bucket(NamedTuple):
    """A range of the flat vector, whole layers, that is summed as one."""

    first_layer: int
    start: int
    stop: int


class GroupCollectives:
    """One group's collectives, as one member sees them."""

    def __init__(
        self, channels: Channels, layout: Layout, like: Tensor, buckets: Sequence[Bucket], header: SumHeader
    ) -> None:
        self.channels = channels
        self.buckets = buckets
        self._like = like
        self._header = header
        self._spare = SpareMemory(header.size + layout.size, like)
        self._side_stream = torch.cuda.Stream(like.device) if like.device.type == "cuda" else None
        # In half precision a count of samples would be rounded, so there the header travels on its own.
        self._together = like.dtype in (torch.float32, torch.float64)

    @classmethod
    def connect(
        cls, name: str, member: int, size: int, layout: Layout, like: Tensor, num_shards: int, num_settings: int,
        num_counts: int, num_workers: int, wiring: Wiring,
    ) -> GroupCollectives:  # fmt: skip
        """Meet the other members."""
        buckets = divide(layout, like.element_size())
        # Their number follows from the model alone, so it is the same on all members: one channel more would hang.
        channels = Channels(name, member, size, wiring, min(_CHANNELS, len(buckets)))
        double = like.dtype == torch.float64
        header = SumHeader(member, size, num_shards, num_settings, num_counts, num_workers, double=double)
        return cls(channels, layout, like, buckets, header)

    @property
    def alone(self) -> bool:
        """Whether the group has one member."""
        return self.channels.size == 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On a GPU, a stream of its own, for what must not wait for queued work; later work waits for it instead."""
        if self._side_stream is None:
            yield
            return
        with torch.cuda.stream(self._side_stream):
            yield
        torch.cuda.current_stream(self._like.device).wait_stream(self._side_stream)

    def buffer(self) -> Tensor:
        """Room for a header and a gradient."""
        return self._spare.take()

    def values(self, buffer: Tensor) -> Tensor:
        """The part of a buffer that holds the gradient."""
        return buffer[self._header.size :]

    def header(self, gradient: Gradient | None, stop: bool, came_s: float, settings: Sequence[float]) -> Tensor:
        """What this member says along with its tensor, in its own places; zero everywhere else."""
        header = torch.from_numpy(self._header.write(gradient, stop, came_s, settings))
        if self._like.device.type != "cpu":
            # Not waited for: the sum is queued behind this copy on the same stream.
            header = header.to(self._like.device, non_blocking=True)
        if gradient is not None and isinstance(gradient.loss, Tensor):
            header[self._header.loss_at] = gradient.loss
        return header

    def read(self, header: Tensor, noted: Notes) -> Said:
        """What all members said."""
        return self._header.read(header.numpy(), noted)

    def all_reduce(self, header: Tensor, buffer: Tensor, launched: int = 0) -> list[Work]:
        """Start the sum of every bucket that is not under way yet. `buffer` will hold the sums, header included."""
        # The header is written before the last bucket leaves, which takes it along.
        if self._together:
            buffer[: self._header.size] = header
        works = [work for bucket in range(launched, len(self.buckets)) for work in self.launch(buffer, bucket)]
        return works if self._together else [*works, *self.channels.all_reduce(header)]

    def launch(self, buffer: Tensor, number: int) -> list[Work]:
        """Start the sum of one bucket; every member must start them in the same order."""
        bucket = self.buckets[number]
        begin = 0 if bucket.first_layer == 0 and self._together else self._header.size + bucket.start
        return self.channels.all_reduce(buffer[begin : self._header.size + bucket.stop], number)

    def summed_header(self, header: Tensor, buffer: Tensor) -> Tensor:
        """Where the sum of all headers is after `all_reduce`."""
        return buffer[: self._header.size] if self._together else header


class BucketSender:
    """Starts the sum of each bucket of a buffer as soon as all of its layers are ready.

    All but the last one: it carries the header, and leaves when everything is known.
    """

    def __init__(self, collectives: GroupCollectives, buffer: Tensor, num_layers: int) -> None:
        self._collectives = collectives
        self._buffer = buffer
        self.ready = [False] * num_layers
        self.launched = 0
        """Buckets under way."""
        self.works: list[Work] = []

    def layer_is_there(self, index: int) -> None:
        """One more layer is in the buffer."""
        self.ready[index] = True
        buckets = self._collectives.buckets
        # In the order of the buckets, even if a later one is complete first: every member must start them alike.
        while self.launched < len(buckets) - 1:
            first = buckets[self.launched].first_layer
            above = buckets[self.launched - 1].first_layer if self.launched else len(self.ready)
            if not all(self.ready[first:above]):
                return
            self.works += self._collectives.launch(self._buffer, self.launched)
            self.launched += 1


def divide(layout: Layout, element_size: int) -> list[Bucket]:
    """Whole layers in buckets of some megabytes, the last layers' first; the header travels with the last one."""
    buckets, stop = [], layout.size
    for index in range(len(layout.layers) - 1, -1, -1):
        start = layout.layers[index].start
        if index == 0 or (stop - start) * element_size >= _BUCKET_BYTES:
            buckets.append(Bucket(index, start, stop))
            stop = start
    return buckets
