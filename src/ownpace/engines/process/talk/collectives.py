"""Sums over groups of processes, by torch.distributed: gloo on CPUs and shared cards, NCCL where each has its own.

What a collective carries beside the tensor (how many samples, their loss, how long they took, who wants to stop)
stands in front of the tensor and is summed with it, each member writing into places of its own: one transfer, not
two. The tensor goes in several buckets, last layers first, over several channels at once, so that buckets can leave
while the backward pass is still at the first layers, and so that one bucket is summed while another travels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ownpace.core.contract.errors import MachineDied
from ownpace.core.contract.values import Contribution, Gradient
from ownpace.core.learning.flat import Layout

_NOTES = 32
_ALIGN = 16
_BUCKET_BYTES = 4 << 20
_CHANNELS = 4
_ASK_EVERY_S = 1e-4
_TICK = timedelta(milliseconds=200)
"""How long a wait lasts before Python may look at its signals."""
_PATIENCE = timedelta(hours=24)
"""Workers may compute that long between two collectives; who dies is noticed at once, by its connections."""
_ENTRY = 6


@dataclass(frozen=True)
class Wiring:
    """How this process can reach the others for collectives."""

    store: dist.Store
    backend: str
    host: str
    """The address to listen on."""


class Ring:
    """One group's collectives, as one member sees them."""

    def __init__(
        self,
        name: str,
        index: int,
        size: int,
        layout: Layout,
        like: Tensor,
        num_shards: int,
        wiring: Wiring,
        num_rates: int = 0,
    ) -> None:
        self.name = name
        self.index = index
        self.size = size
        self._like = like
        self._num_shards = num_shards
        self._entry = _ENTRY + num_shards + num_rates
        head = 1 + size * self._entry + _NOTES + 2 * size
        self.head = -(-head // _ALIGN) * _ALIGN
        self._num_values = layout.size
        self._stream = torch.cuda.Stream(like.device) if like.device.type == "cuda" else None
        self.joint = like.dtype in (torch.float32, torch.float64)
        self.buckets = self._divide(layout, like.element_size())
        self._begun = AskedWork if wiring.backend == "nccl" else _as_it_is
        self._channels = _connect(name, index, size, wiring, min(_CHANNELS, len(self.buckets)))

    def _divide(self, layout: Layout, element_size: int) -> list[tuple[int, int, int]]:
        """(first layer, start, stop) of each bucket, the last layers' first; the header is in the last one."""
        buckets, stop = [], layout.size
        for index in range(len(layout.layers) - 1, -1, -1):
            start = layout.layers[index].start
            if index == 0 or (stop - start) * element_size >= _BUCKET_BYTES:
                buckets.append((index, start, stop))
                stop = start
        return buckets

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On a card, a stream of its own for what must not wait for queued work; that will wait for it instead."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._like.device).wait_stream(self._stream)

    def close(self) -> None:
        """Let go of the connections: their threads must have ended before the process does."""
        self._channels.clear()

    # ---- what is sent ----

    def buffer(self) -> Tensor:
        """Room for a header and a gradient."""
        return torch.empty(self.head + self._num_values, dtype=self._like.dtype, device=self._like.device)

    def values(self, buffer: Tensor) -> Tensor:
        """The part of a buffer that holds the gradient."""
        return buffer[self.head :]

    def header(self, body: Gradient | Tensor | None, stop: bool, came_s: float, rates: Sequence[float] = ()) -> Tensor:
        """What this member says beside its tensor, in its own places; zero everywhere else."""
        numbers = [0.0] * self.head
        numbers[0] = float(stop)
        start = 1 + self.index * self._entry
        numbers[start + 4] = came_s
        if isinstance(body, Gradient):
            notes = [] if body.notes is None else body.notes.tolist()
            if len(notes) > _NOTES + 2 * self.size:
                raise ValueError(f"{len(notes)} notes; at most {_NOTES + 2 * self.size} can travel with a gradient")
            numbers[start : start + self._entry] = [
                1.0,
                body.samples,
                0.0,
                body.seconds,
                came_s,
                len(notes),
                *body.versions,
                *rates,
            ]
            first = 1 + self.size * self._entry
            numbers[first : first + len(notes)] = notes
            loss = body.loss
            if not isinstance(loss, Tensor):
                numbers[start + 2] = loss
        dtype = np.float64 if self._like.dtype == torch.float64 else np.float32
        header = torch.from_numpy(np.array(numbers, dtype=dtype))  # a quarter of the time that torch.tensor takes
        if self._like.device.type != "cpu":
            header = header.to(self._like.device, non_blocking=True)
        if isinstance(body, Gradient) and isinstance(body.loss, Tensor):
            header[start + 2] = body.loss
        return header

    # ---- sending it ----

    def all_reduce(self, header: Tensor, buffer: Tensor, launched: int = 0) -> list[Any]:
        """Start the sum of every bucket that is not under way yet. `buffer` will hold the sums, header included."""
        if self.joint:
            buffer[: self.head] = header
        works = [self.launch(buffer, bucket) for bucket in range(launched, len(self.buckets))]
        if not self.joint:
            works.append(self._all_reduce(0, header))
        return works

    def launch(self, buffer: Tensor, bucket: int) -> Any:
        """Start the sum of one bucket; every member must start them in the same order."""
        first, start, stop = self.buckets[bucket]
        begin = 0 if first == 0 and self.joint else self.head + start
        return self._all_reduce(bucket, buffer[begin : self.head + stop])

    def _all_reduce(self, bucket: int, values: Tensor) -> Any:
        if self.size == 1:
            return None
        return self._begun(self._channels[bucket % len(self._channels)].allreduce([values], dist.AllreduceOptions()))

    def all_reduce_tensors(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Start the sum of each of these."""
        return [self._all_reduce(0, tensor) for tensor in tensors]

    def reduce(self, tensors: Sequence[Tensor], root: int) -> list[Any]:
        """Start the sum, for one member only."""
        if self.size == 1:
            return []
        options = dist.ReduceOptions()
        options.rootRank = root
        return [self._begun(self._channels[0].reduce([tensor], options)) for tensor in tensors]

    def broadcast(self, tensors: Sequence[Tensor], root: int) -> list[Any]:
        """Start sending one member's tensors to all."""
        if self.size == 1:
            return []
        options = dist.BroadcastOptions()
        options.rootRank = root
        return [self._begun(self._channels[0].broadcast([tensor], options)) for tensor in tensors]

    # ---- what came ----

    def read(self, header: Tensor, total: Tensor) -> Gradient:
        """The sum of what all members said, around the sum of their tensors."""
        numbers: list[float] = header.tolist()
        entries = [numbers[1 + i * self._entry : 1 + (i + 1) * self._entry] for i in range(self.size)]
        present = [entry for entry in entries if entry[0]]
        length = int(max((entry[5] for entry in present), default=0))
        first = 1 + self.size * self._entry
        versions = zip(*(entry[_ENTRY : _ENTRY + self._num_shards] for entry in present), strict=True)
        return Gradient(
            total=total,
            samples=round(sum(entry[1] for entry in present)),
            versions=tuple(round(min(column)) for column in versions) or (0,) * self._num_shards,
            loss=math.fsum(entry[2] for entry in present),
            seconds=math.fsum(entry[3] for entry in present),
            notes=torch.tensor(numbers[first : first + length], dtype=torch.float64) if length else None,
            contributions=tuple(Contribution(round(entry[1]), entry[3]) for entry in entries),
            rates=tuple(entries[0][_ENTRY + self._num_shards :]),
        )

    def last_came_s(self, header: Tensor) -> float:
        """When the last member came, in the run's time."""
        return float(header[1 : 1 + self.size * self._entry].view(self.size, self._entry)[:, 4].max())


class Departures:
    """Starts the sum of each bucket of a buffer as soon as all of its layers are there.

    All but the last one: that takes the header along, and leaves when everything is known.
    """

    def __init__(self, ring: Ring, buffer: Tensor, num_layers: int) -> None:
        self._ring = ring
        self._buffer = buffer
        self.ready = [False] * num_layers
        self.works: list[Any] = []

    def layer_is_there(self, index: int) -> None:
        """One more layer stands in the buffer."""
        self.ready[index] = True
        buckets = self._ring.buckets
        while len(self.works) < len(buckets) - 1:
            first = buckets[len(self.works)][0]
            above = buckets[len(self.works) - 1][0] if self.works else len(self.ready)
            if not all(self.ready[first:above]):
                return
            self.works.append(self._ring.launch(self._buffer, len(self.works)))


class AskedWork:
    """Work of NCCL. A wait that is too short ends its communicator, so this asks until it is done."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, timeout: timedelta) -> None:
        """Wait so long at most.

        Raises:
            RuntimeError: It is not done by then ("timed out"), or has failed.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._work.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("timed out")
            time.sleep(_ASK_EVERY_S)
        self._work.wait()


def _as_it_is(work: Any) -> Any:
    return work


def finish(works: Sequence[Any], group: str, on_tick: Callable[[], None]) -> None:
    """Wait until all of these are done, and call `on_tick` now and then meanwhile.

    Raises:
        MachineDied: A member is gone.
    """
    for work in works:
        over = False
        while work is not None:
            try:
                work.wait(_TICK)
                break
            except RuntimeError as error:
                if "timed out" in str(error).lower() and not over:
                    over = work.is_completed()  # it may just have ended: then the next wait tells how
                    on_tick()
                    continue
                reason = str(error).splitlines()[0].rsplit("]", 1)[-1].strip()
                raise MachineDied(f"a member of {group} is gone: {reason}") from error


def _connect(name: str, index: int, size: int, wiring: Wiring, count: int) -> list[Any]:
    if size == 1:
        return []
    channels: list[Any] = []
    for number in range(count):
        store = dist.PrefixStore(f"ring/{name}/{number}", wiring.store)
        if wiring.backend == "nccl":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = _PATIENCE
            channels.append(dist.ProcessGroupNCCL(store, index, size, nccl))
        else:
            gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=wiring.host)]
            gloo._timeout = _PATIENCE
            gloo._threads = 1 if count > 1 else 2
            channels.append(dist.ProcessGroupGloo(store, index, size, gloo))
    return channels
