"""The loops over the data in a user's script: how each begins, hands out its batches and ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.sampling import Sampling
from ownpace.engines.process.node.batch_source import BatchSource
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.run.joining import LoopRun


@dataclass(frozen=True)
class Wrapped:
    """What a user gave to `fleet.wrap`."""

    model: nn.Module
    parameters: UserParameters
    overlap: bool


class Loops:
    """What `Batches` needs of the fleet."""

    def __init__(self, run: LoopRun, wrapped: Wrapped) -> None:
        self._run = run
        self._wrapped = wrapped

    def begin(self, batch_size: int, size: int, epochs: int, sampling: Sampling) -> BatchSource:
        """Begin a loop over the data; returns where its samples come from."""
        run, wrapped = self._run, self._wrapped
        if run.is_open and run.loop.is_waiting:
            raise InputError("fleet.batches was called within a loop over fleet.batches; end that loop before")
        alike_in_loops = {"number of samples": size, "sampling": sampling, "epochs": epochs, "batch size": batch_size}
        # Before anything of the loop exists: a rank that does something else would leave the others waiting in it.
        run.presence.begin_loop({name: str(value) for name, value in alike_in_loops.items()})
        if not run.is_open:
            alike = {"number_of_samples": size, "sampling": sampling, "epochs": epochs}
            run.open(wrapped.model, wrapped.parameters, overlap=wrapped.overlap, batch_size=batch_size, alike=alike)
        number = run.begin_loop(batch_size, epochs * size)
        source = run.source(number, size, epochs, sampling)
        run.loop.is_running = True
        return source

    def hand_out(self, samples: int) -> bool:
        """A batch of this many samples is about to be handed out; False: the run was stopped."""
        # Here, too: an algorithm may go on for long without asking for anything that another rank has to bring.
        self._run.presence.check()
        if not self._run.loop.is_waiting:
            return False
        self._run.loop.hand_out(samples)
        return True

    def end(self, *, stop: bool) -> None:
        """End the loop; `stop`: before its data."""
        self._run.loop.is_running = False
        self._run.end_loop(stop=stop)
        if not stop and self._run.was_interrupted and self._run.rank == 0:
            raise Interrupted("interrupted; the model keeps what it has learnt so far")
