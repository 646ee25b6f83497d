"""What goes layer by layer, put together again where it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ownpace.core.contract.errors import WireError
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.engines.process.talk.wire import Packet, blamed


class Parts:
    """One message that arrives bucket by bucket."""

    def __init__(self, first: Packet, sizes: Sequence[int]) -> None:
        self._ends = list(accumulate(sizes))
        self.arrived = [False] * len(sizes)
        """Which buckets are there, the lowest layers first."""
        self.values = torch.empty(self._ends[-1], dtype=_tensor(first).dtype)
        self.said: Packet | None = None
        """The packet of the lowest layers, once it is there: it says all that there is to say."""
        self._kind = type(first.body)

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return all(self.arrived)

    def take(self, packet: Packet) -> None:
        """Put a bucket in its place."""
        part = packet.part
        if type(packet.body) is not self._kind or self.arrived[part]:
            raise WireError(f"bucket {part} of {packet.num_parts}, which is of another message")
        stop = self._ends[part]
        values = _tensor(packet)
        self.values[stop - len(values) : stop] = values
        self.arrived[part] = True
        if part == 0:
            self.said = packet


class Assembly:
    """All messages that are arriving bucket by bucket: one from each sender at a time."""

    def __init__(self, sizes: Mapping[int, Sequence[int]], own: int | None) -> None:
        """`sizes`: of buckets, by shard; `own`: a server's shard."""
        self._sizes = sizes
        self._own = own
        self._open: dict[str, Parts] = {}

    def clear(self) -> None:
        """Forget what is not complete."""
        self._open.clear()

    def take(self, name: str, packet: Packet) -> Parts:
        """Take in one bucket; returns what its message has become with it."""
        parts = self._open.get(name)
        if parts is None:
            shard = packet.body.shard.index if isinstance(packet.body, Parameters) else self._own
            assert shard is not None, "the wire has checked that a gradient is of this server's shard"
            parts = self._open[name] = Parts(packet, self._sizes[shard])
        try:
            parts.take(packet)
        except WireError as error:
            raise blamed(name, error) from None
        if parts.is_complete:
            del self._open[name]
        return parts


def _tensor(packet: Packet) -> Tensor:
    body = packet.body
    assert isinstance(body, Gradient | Parameters), "the wire has checked what goes in buckets"
    return body.total if isinstance(body, Gradient) else body.values


__all__ = ["Assembly", "Parts"]
