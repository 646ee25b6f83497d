"""What can be awaited on real processes: messages and collectives under way. Awaiting blocks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ownpace.core.contract import events
from ownpace.core.contract.values import Address, Gradient, Message
from ownpace.engines.process.talk.collectives import Ring

if TYPE_CHECKING:
    from ownpace.engines.process.node.nodes import ProcessNode

TICK_S = 0.2
"""How long a wait lasts before somebody looks at signals and alarms."""


class Released(BaseException):
    """The last worker has ended: servers and communicators may go home."""


class Sent:
    """A message that is under way: ZeroMQ delivers it, whatever this process does next."""

    done = True

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class Received:
    """A message that is awaited. Taking it takes in what its sender knew of the run's progress."""

    def __init__(self, node: ProcessNode, sender: Address | None) -> None:
        self._node = node
        self.sender = sender
        self.message: Message | None = None

    @property
    def done(self) -> bool:
        if self.message is None:
            self._node.sort_mail(0.0)
        return self.message is not None

    def __await__(self) -> Generator[Any, Any, Message]:
        node = self._node
        if self.message is None:
            start = node._clock.now()
            node._books.maybe_report(start)
            node.sort_mail(0.0)
            while self.message is None:
                node.sort_mail(TICK_S)
                if node._released:
                    raise Released
            node.waited("message", start)
        message = self.message
        node.take_in(message.samples, message.stop)
        return message
        yield


class Reduced:
    """A collective under way."""

    def __init__(
        self,
        node: ProcessNode,
        what: str,
        ring: Ring,
        works: Sequence[Any],
        header: Tensor,
        buffer: Tensor,
        came_s: float,
    ) -> None:
        self._node = node
        self._what = what
        self._ring = ring
        self._works = works
        self._header = header
        self._buffer = buffer
        self._came_s = came_s
        self.is_tensor = False
        self.root: int | None = None
        self._stop = False
        self._result: Any = self

    @classmethod
    def known(cls, node: ProcessNode, ring: Ring, result: Gradient, stop: bool) -> Reduced:
        """One whose result is there already."""
        reduced = cls(node, "all-reduce", ring, (), result.total, result.total, 0.0)
        reduced._result = result
        reduced._stop = stop
        return reduced

    @property
    def done(self) -> bool:
        return self._result is not self or all(work is None or work.is_completed() for work in self._works)

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._result is self:
            self._result = self._finish()
        if self._stop:
            self._node.take_in(0, True)
        return self._result
        yield

    def _finish(self) -> Any:
        node, ring, buffer = self._node, self._ring, self._buffer
        start = node._clock.now()
        whole = self._what == "all-reduce" and not self.is_tensor
        header = buffer[: ring.head] if whole and ring.joint else self._header
        with ring.beside():  # the header is read at once, not after all that a card has still to compute
            node.wait_for(self._works, ring.name)
            header = header.cpu()
        node.waited(self._what, start)
        self._works = ()
        values = ring.values(buffer) if whole else buffer
        if self._what == "reduce" and ring.index != self.root:
            return None
        if node._books.detail and ring.index == 0:
            begun = max(self._came_s, ring.last_came_s(header))
            end = node._clock.now()
            node._books.event(events.Transfer(min(begun, end), end, self._what, ring.name, values.nbytes))
        self._stop = float(header[0]) > 0
        if self.is_tensor:
            return values
        total = ring.read(header, values)
        if self._what == "broadcast":
            total.contributions = ()
        return total
