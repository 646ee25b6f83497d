"""A worker on a process of its own: a node with parameters, whose gradients come from a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Address, Batch, Body, Gradient, Group, Message, Notes, Parameters
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.node.learner import LearnerState
from ownpace.engines.process.node.nodes import ProcessNode
from ownpace.engines.process.node.parameters import HeldParameters
from ownpace.engines.process.node.receiving import ProcessReceive, taken
from ownpace.engines.process.node.sums import ProcessSum
from ownpace.engines.process.talk.control import Control
from ownpace.engines.process.talk.replica_control import FirstReplica

B = TypeVar("B", Gradient, Tensor)


class GradientSource(Protocol):
    """How a worker gets its gradients: it computes them itself, or a user's loop does."""

    takes_layers: bool
    """Whether it can begin a gradient before all its parameters have come."""

    def load(self, samples: int) -> Pending[Batch]:
        """Draw and load samples."""

    def ask(self, samples: int, at: Parameters | None, batch: Batch | None, plus: Gradient | None) -> Pending[Gradient]:
        """Ask for a gradient."""

    def finish_asked(self) -> None:
        """Compute what was asked for and not awaited yet."""

    def hand_over(self, asked: Pending[Gradient], group: Group) -> Pending[Gradient]:
        """Sum a gradient that may still have to be computed."""

    def push(self, asked: Pending[Gradient], to: Address, notes: Notes) -> None:
        """Send a gradient that may still have to be computed."""

    def received(self, received: ProcessReceive) -> Pending[Message]:
        """A message that was asked for now: it cannot come before what was asked for earlier has been sent."""

    def buffers(self) -> Tensor | None:
        """The model's buffers in one vector, where the hub needs them to evaluate it."""

    def take_data_range(self, start: float, stop: float) -> None:
        """Draw samples from this range of the data from now on."""


class ProcessWorker(ProcessNode):
    """A worker; its gradients come from a source."""

    def __init__(
        self,
        context: NodeContext,
        held: HeldParameters,
        batch_size: int,
        micro_batch: int,
        before: ProcessWorker | None = None,
    ) -> None:
        super().__init__(context, before)
        self.batch_size = batch_size
        self.micro_batch = micro_batch
        self.kept: dict[str, Tensor] = {} if before is None else before.kept
        self.source: GradientSource
        self.learner = LearnerState(context, self.progress, held, self.inbox, self._buffers)
        self._arriving: list[Pending[Message]] = []

    @property
    def rank(self) -> int:
        return self.address.index

    @property
    def parameters(self) -> Parameters:
        self._settle()
        return self.learner.parameters

    @property
    def lr(self) -> float:
        self.learner.settle()
        return self.learner.lr

    @property
    def updates(self) -> int:
        self.learner.settle()
        return self.progress.version

    @property
    def run_samples(self) -> int | None:
        return self.context.terms.samples

    @property
    def waited_s(self) -> float:
        return self.context.reporter.waited_s

    def load(self, samples: int | None = None) -> Pending[Batch]:
        return self.source.load(self.micro_batch if samples is None else samples)

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> Pending[Gradient]:
        self.finish_asked()
        if at is None and not self.source.takes_layers:
            self._settle()
        if batch is not None:
            samples = batch.samples
        return self.source.ask(self.micro_batch if samples is None else samples, at, batch, plus)

    def no_gradient(self) -> Gradient:
        # −0.0: added to it, a layer without a gradient stays one.
        return Gradient(torch.full_like(self.learner.held.values, -0.0), 0, self.progress.versions, 0.0)

    def all_reduce(self, body: B | Pending[B], group: Group | None = None) -> Pending[B]:
        if isinstance(body, Gradient | Tensor):
            return super().all_reduce(body, group)
        return self.source.hand_over(body, group or self.workers)  # type: ignore[arg-type,return-value]  # never a tensor

    def send(self, to: Address, body: Body | Pending[Gradient] = None, **notes: float) -> None:
        if isinstance(body, Gradient | Parameters | Tensor | None):
            super().send(to, body, **notes)
        else:
            self.source.push(body, to, notes)

    def receive(self, sender: Address | None = None) -> Pending[Message]:
        self.finish_asked()
        return self.source.received(self.inbox.receive(sender))

    def step(self, gradient: Gradient, *, lr_scale: float = 1.0, advance: float | None = None, memory: int = 0) -> None:
        self.finish_asked()
        self._settle()
        self.learner.step(gradient, lr_scale, advance, memory)

    async def step_by_layer(
        self, total: Pending[Gradient], *, lr_scale: float = 1.0, advance: float | None = None
    ) -> Gradient:
        if isinstance(total, ProcessSum):
            self.finish_asked()
            self._settle()
            return self.learner.step_by_layer(total, lr_scale, advance, layers_count=self.source.takes_layers)
        gradient = await total  # a user's loop has yet to bring this worker's part
        self.step(gradient, lr_scale=lr_scale, advance=advance)
        return gradient.without_numbers()

    def peek(self, gradient: Gradient, *, lr_scale: float = 1.0) -> Parameters:
        self._settle()
        return self.learner.peek(gradient, lr_scale)

    def place(self, parameters: Parameters | Pending[Message]) -> None:
        self.finish_asked()
        if isinstance(parameters, Parameters):
            self.learner.place(parameters)
            return
        self._arriving.append(parameters)
        if isinstance(parameters, ProcessReceive):
            parameters.takes_layers = self.source.takes_layers and parameters.sender in self.servers.members

    def take_arriving(self) -> list[ProcessReceive]:
        """The messages whose layers are to be put in their places by a gradient, which waits for them."""
        layered = [each for each in self._arriving if isinstance(each, ProcessReceive) and each.takes_layers]
        self._arriving = [each for each in self._arriving if each not in layered]
        self._settle()
        return layered

    def _settle(self) -> None:
        """Wait for the parameters that were handed over before they had come."""
        arriving, self._arriving = self._arriving, []
        for received in arriving:
            if isinstance(received, ProcessReceive):
                received.takes_layers = False  # no gradient uses them as they come: all of it is waited for
            self.learner.place(taken(received).parameters)

    def local_step(self, gradient: Gradient, *, lr_scale: float = 1.0) -> None:
        self.finish_asked()
        self._settle()
        self.learner.local_step(gradient, lr_scale)

    def commit(self, values: Tensor, work: Gradient, *, ahead: Tensor | None = None) -> None:
        self.finish_asked()
        self._settle()
        self.learner.commit(values, work, ahead)

    def take_data_range(self, start: float, stop: float) -> None:
        self.source.take_data_range(start, stop)

    def finish_asked(self) -> None:
        self.source.finish_asked()

    def settings(self) -> Sequence[float]:
        return self.learner.held.settings()

    def hear_settings(self, agreed: Sequence[float], mine: Sequence[float]) -> None:
        self.learner.hear_settings(agreed, mine)

    def hear_control(self, sender: str, control: Control, body: Body) -> bool:
        if isinstance(control, FirstReplica) and sender != self.workers.members[0].name:
            return True  # of a generation in which that one was the first
        return super().hear_control(sender, control, body)

    def hear_rounding(self, *, unlike: bool) -> None:
        self.learner.alignment.is_needed = unlike

    def begin(self, loop: int) -> None:
        super().begin(loop)
        self._arriving.clear()
        self.learner.begin()

    def _buffers(self) -> Tensor | None:
        return self.source.buffers()
