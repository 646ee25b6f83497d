"""What an algorithm asks a user's loop for: gradients, and sums that begin when the loop has brought them."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from torch import Tensor

from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Batch, Gradient, Group, Message, Notes, Parameters
from ownpace.engines.process.node.receiving import ProcessReceive
from ownpace.engines.process.node.worker import ProcessWorker


class LoopGradient:
    """A gradient that the algorithm waits for, and the user's loop will bring."""

    def __init__(self, samples: int, at: Parameters | None, plus: Gradient | None, versions: tuple[int, ...]) -> None:
        self.samples = samples
        self.at = at
        self.plus = plus
        self.versions = versions
        self.gradient: Gradient | None = None
        self.sum: LoopSum | None = None
        """The sum that it is to be handed to as soon as it is computed."""
        self.pushes: list[tuple[Address, Notes]] = []
        """To whom it goes as soon as it is computed."""

    @property
    def done(self) -> bool:
        return self.gradient is not None

    def __await__(self) -> Generator[object, None, Gradient]:
        while self.gradient is None:
            yield self
        return self.gradient


class LoopSum:
    """A sum that begins when the user's loop has brought this worker's gradient."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.begun: Pending[Gradient] | None = None

    @property
    def done(self) -> bool:
        return self.begun is not None and self.begun.done

    def __await__(self) -> Generator[object, None, Gradient]:
        while self.begun is None:
            yield self
        total = yield from self.begun.__await__()
        return total


class LoopReceive:
    """A message that cannot come before the user's loop has brought a gradient, which is on its way then."""

    def __init__(self, asked: LoopGradient, received: Pending[Message]) -> None:
        self._asked = asked
        self._received = received

    @property
    def done(self) -> bool:
        return self._asked.done and self._received.done

    def __await__(self) -> Generator[object, None, Message]:
        yield from self._asked.__await__()
        message = yield from self._received.__await__()
        return message


class Brought(NamedTuple):
    """What the loop brings."""

    model: int
    """Whose gradient it is."""
    samples: int
    new_samples: int
    """Those that no other model's gradient has been brought of."""
    seconds: float


class LoopGradients:
    """The worker's source of gradients: it notes what is asked for, and the loop answers."""

    takes_layers = False
    """A user's model has all its parameters before its forward pass: hooks on it would be seen by torch.compile."""

    def __init__(self, worker: ProcessWorker) -> None:
        self._worker = worker
        self.asked: LoopGradient | None = None

    def load(self, samples: int) -> Pending[Batch]:
        raise InputError("this algorithm loads its samples itself, which only `ownpace train` can do; use another")

    def ask(self, samples: int, at: Parameters | None, batch: Batch | None, plus: Gradient | None) -> LoopGradient:
        self.asked = LoopGradient(samples, at, plus, self._worker.progress.versions_at(at))
        return self.asked

    def finish_asked(self) -> None:
        """The loop is not here to compute: whatever depends on a gradient awaits it."""

    def hand_over(self, asked: Pending[Gradient], group: Group) -> Pending[Gradient]:
        assert isinstance(asked, LoopGradient)
        if asked.gradient is not None:
            return self._worker.all_reduce(asked.gradient, group)
        asked.sum = LoopSum(group)
        return asked.sum

    def push(self, asked: Pending[Gradient], to: Address, notes: Notes) -> None:
        assert isinstance(asked, LoopGradient)
        asked.pushes.append((to, notes))
        if asked.gradient is not None:
            self.send(asked)

    def send(self, asked: LoopGradient) -> None:
        """Send a gradient that the loop has brought to those it was handed over for, in one piece."""
        assert asked.gradient is not None
        pushes, asked.pushes = asked.pushes, []
        for to, notes in pushes:
            self._worker.send(to, asked.gradient.part(to.shard), **notes)

    def received(self, received: ProcessReceive) -> Pending[Message]:
        # Awaiting must suspend the coroutine where the loop has yet to compute: nobody else would.
        waits = self.asked is not None and bool(self.asked.pushes)
        return LoopReceive(self.asked, received) if self.asked is not None and waits else received

    def buffers(self) -> Tensor | None:
        return None

    def take_data_range(self, start: float, stop: float) -> None:
        """`fleet.batches` has dealt the data out already."""
