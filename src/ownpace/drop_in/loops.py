"""The loops over the data in a user's script: how each begins, hands out its batches and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.sampling import Sampling
from ownpace.drop_in.progress import FleetProgress
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

    def __init__(self, run: LoopRun, wrapped: Wrapped, progress: FleetProgress) -> None:
        self._run = run
        self._progress = progress
        self._epochs = 0
        self._was_stopped = False
        self._wrapped = wrapped

    def begin(
        self, batch_size: int, size: int, epochs: int, sampling: Sampling, updates: int | None = None
    ) -> BatchSource:
        """Begin a loop over the data; returns where its samples come from."""
        run, wrapped = self._run, self._wrapped
        if run.is_open and run.loop.is_waiting:
            raise InputError("fleet.batches was called within a loop over fleet.batches; end that loop before")
        alike_in_loops = {"number of samples": size, "sampling": sampling, "epochs": epochs, "batch size": batch_size}
        # Before anything of the loop exists: a rank that does something else would leave the others waiting in it.
        run.presence.begin_loop({name: str(value) for name, value in alike_in_loops.items()})
        if not run.is_open:
            alike = {"number_of_samples": size, "sampling": sampling, "epochs": epochs, "updates": updates}
            run.open(wrapped.model, wrapped.parameters, overlap=wrapped.overlap, batch_size=batch_size, alike=alike)
        # Before the coroutine begins, which may make an update at once, without data of this rank.
        self._progress.begin_loop(batch_size, epochs * size, size)
        self._epochs, self._was_stopped = epochs, False
        number = run.begin_loop(batch_size, epochs * size, math.inf if updates is None else updates)
        source = run.source(number, size, epochs, sampling)
        run.loop.is_running = True
        return source

    def hand_out(self, samples: int) -> bool:
        """A batch of this many samples is about to be handed out; False: the run was stopped."""
        # Here, too: an algorithm may go on for long without asking for anything that another rank has to bring.
        self._run.presence.check()
        loop = self._run.loop
        if not loop.is_waiting or loop.has_made_its_updates:
            self._was_stopped = True
            return False
        loop.hand_out(samples)
        return True

    def end(self, *, stop: bool) -> None:
        """End the loop; `stop`: before its data."""
        self._run.loop.is_running = False
        complete = self._run.end_loop(stop=stop) and not self._was_stopped
        self._progress.end_loop(self._epochs if complete else None)
        if not stop and self._run.was_interrupted and self._run.rank == 0:
            raise Interrupted("interrupted; the model keeps what it has learnt so far")
