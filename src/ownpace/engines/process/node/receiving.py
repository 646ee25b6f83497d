"""Messages that are awaited on processes: as a whole, or as their layers arrive."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Message
from ownpace.engines.process.node.parts import Parts

T = TypeVar("T")


class Arrivals(Protocol):
    """Where messages arrive."""

    def look(self, timeout_s: float | None) -> None:
        """Take in every message that has arrived; if there is none, wait for one, at most this long."""

    def block(self, is_there: Callable[[], bool]) -> float:
        """Wait until something has come; returns when the wait began."""

    def took(self, come: Come, waited_since_s: float | None = None) -> None:
        """A message was awaited."""


class Come(NamedTuple):
    """A message that has come, or begun to."""

    message: Message
    settings: Sequence[float]
    parts: Parts | None
    """Of what goes layer by layer: what of it is there."""


class ProcessReceive:
    """A message that is awaited."""

    def __init__(self, inbox: Arrivals, sender: Address | None) -> None:
        self._inbox = inbox
        self.sender = sender
        self.come: Come | None = None
        self.takes_layers = False
        """Whether its layers are used as they arrive: it need only have begun to come."""

    def wants(self, message: Message) -> bool:
        """Whether this message is what is awaited here."""
        return self.sender is None or message.sender is self.sender

    def is_there(self) -> bool:
        """Whether it has come, as far as is wanted."""
        come = self.come
        return come is not None and (self.takes_layers or come.parts is None or come.parts.is_complete)

    @property
    def message(self) -> Message | None:
        """The message, once it is there."""
        return self.come.message if self.come is not None and self.is_there() else None

    @property
    def done(self) -> bool:
        if not self.is_there():
            self._inbox.look(0.0)
        return self.is_there()

    def __await__(self) -> Generator[object, None, Message]:
        since = None if self.is_there() else self._inbox.block(self.is_there)
        assert self.come is not None
        self._inbox.took(self.come, since)
        return self.come.message
        # Never reached: it makes this a generator, which is what `await` needs.
        yield


def taken(pending: Pending[T]) -> T:
    """What was started, waited for here and now. What it depends on has been sent."""
    waiting = pending.__await__()
    try:
        next(waiting)
    except StopIteration as end:
        value: T = end.value
        return value
    raise RuntimeError("something was awaited that cannot come before a gradient that is still to be computed")


__all__ = ["Come", "ProcessReceive", "taken"]
