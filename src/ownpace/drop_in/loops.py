"""The loops over the data in a user's script: how each begins, hands out its batches and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.claims import Claim
from ownpace.core.learning.sampling import Take
from ownpace.drop_in.digest import SampleDigests
from ownpace.drop_in.feeds import Member
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

    def __init__(self, run: LoopRun, wrapped: Wrapped, digests: SampleDigests) -> None:
        self._run = run
        self._wrapped = wrapped
        self.digests = digests

    @property
    def member(self) -> Member:
        """This worker's place in the fleet."""
        return Member(self._run.rank, self._run.num_workers, self._run.seed)

    @property
    def next_number(self) -> int:
        """That of the loop that begins next."""
        return self._run.generation + 1

    def check_free(self) -> None:
        """Raise if a loop runs."""
        if self._run.is_open and self._run.loop.is_waiting:
            raise InputError("fleet.batches was called within a loop over fleet.batches; end that loop before")

    def begin(self, batch_size: int, samples: float, updates: int | None, alike: dict[str, str]) -> int:
        """Begin a loop over at most so many samples and updates; returns its number.

        Args:
            batch_size: Samples that each worker contributes to an update, where the algorithm does not decide.
            samples: At most so many samples.
            updates: At most so many updates (None: any number).
            alike: What must be the same on all ranks.
        """
        run, wrapped = self._run, self._wrapped
        # Before anything of the loop exists: a rank that does something else would leave the others waiting in it.
        run.presence.begin_loop(alike)
        if not run.is_open:
            run.open(wrapped.model, wrapped.parameters, overlap=wrapped.overlap, batch_size=batch_size, alike=alike)
        number = run.begin_loop(batch_size, samples, math.inf if updates is None else updates)
        run.loop.is_running = True
        return number

    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next."""
        return self._run.loop.wanted_samples()

    def taking(self, number: int) -> Take:
        """Takes places that all workers share, in that loop."""
        return self._run.taking(number)

    def note(self, number: int, claim: Claim) -> None:
        """Note places of this worker's own."""
        self._run.note(number, claim)

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
