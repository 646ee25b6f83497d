"""Messages that have come to a node, and receives that wait for one: whoever is first in the one gets the first in the
other that fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Body, Gradient, Message, Parameters
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.parts import Assembly, Parts
from ownpace.engines.process.node.receiving import Come, ProcessReceive
from ownpace.engines.process.talk.wire import Packet


class Deliveries:
    """What has come and is not taken yet, what comes in parts, and who waits."""

    def __init__(self, context: NodeContext, sizes: Mapping[int, Sequence[int]], own: int | None) -> None:
        """`sizes`: by shard, those of its buckets of layers; `own`: a server's shard."""
        self._context = context
        self._assembly = Assembly(sizes, own)
        self._arrived: deque[Come] = deque()
        self._receiving: list[ProcessReceive] = []

    def clear(self) -> None:
        """Forget all."""
        self._arrived.clear()
        self._assembly.clear()
        self._receiving.clear()

    def give(self, received: ProcessReceive) -> None:
        """Give a receive the oldest message that it wants, or let it wait for one."""
        for entry in self._arrived:
            if received.wants(entry.message):
                self._arrived.remove(entry)
                received.come = entry
                return
        self._receiving.append(received)

    def take_in(self, name: str, packet: Packet) -> None:
        """A message of this generation is there."""
        context, now = self._context, self._context.clock.now()
        if context.reporter.detail and now > 0:
            nbytes = 0 if packet.body is None else packet.body.nbytes
            context.reporter.event(
                events.Transfer(min(packet.sent_s, now), now, "send", [name, context.address.name], nbytes)
            )
        parts = None if packet.num_parts == 1 else self._assembly.take(name, packet)
        if parts is None:
            self._hand_over(name, packet, None)
        elif isinstance(packet.body, Parameters) and packet.part == 0:
            self._hand_over(name, packet, parts)  # to be used as it arrives
        elif isinstance(packet.body, Gradient) and parts.is_complete and parts.said is not None:
            self._hand_over(name, parts.said, parts)

    def _hand_over(self, name: str, packet: Packet, parts: Parts | None) -> None:
        """Give a message to the oldest receive that wants it, or keep it for the next."""
        body = packet.body
        if isinstance(body, Gradient) and parts is not None:
            body.total = parts.values
        elif isinstance(body, Parameters) and parts is not None:
            body.values = parts.values
        body = _on(body, self._context.like.device) if parts is None or parts.is_complete else body
        message = Message(self._context.roster.by_name[name], body, packet.samples, packet.stop, packet.notes)
        come = Come(message, packet.settings, parts)
        for received in self._receiving:
            if received.wants(message):
                self._receiving.remove(received)
                received.come = come
                return
        self._arrived.append(come)


def _on(body: Body, device: torch.device) -> Body:
    """The same body on this device."""
    if device.type == "cpu" or body is None:
        return body
    if isinstance(body, Gradient):
        body.total = body.total.to(device)
    elif isinstance(body, Parameters):
        body.values = body.values.to(device)
    elif isinstance(body, Tensor):
        return body.to(device)
    return body
