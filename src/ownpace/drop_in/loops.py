"""The loops over the data in a user's script: how each begins, hands out its batches and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.claims import Claim, Places
from ownpace.core.learning.sampling import Take
from ownpace.drop_in.digest import SampleDigests
from ownpace.drop_in.feeds import Member
from ownpace.drop_in.progress import FleetProgress
from ownpace.drop_in.taken_early import TakenEarly
from ownpace.engines.process.node.user_pair import check_not_inside
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.run.joining import LoopRun
from ownpace.engines.process.talk.store import WatchedStore


@dataclass(frozen=True)
class Wrapped:
    """What a user gave to `fleet.wrap`."""

    parameters: UserParameters
    overlap: bool | None

    @property
    def models(self) -> list[nn.Module]:
        """In the order of `wrap`; one that has several optimizers is there once."""
        return list({id(pair.model): pair.model for pair in self.parameters.pairs}.values())

    @property
    def model(self) -> nn.Module:
        """All models as one."""
        return self.models[0] if len(self.models) == 1 else nn.ModuleList(self.models)


@dataclass(frozen=True)
class LoopPlan:
    """How long a loop is to be; what is not known of it is infinite."""

    batch_size: int
    """Samples that each worker contributes to an update, where the algorithm does not decide."""
    places: float
    """At most this many samples are dealt out."""
    samples: float
    """As far as is known, it will be this many."""
    epoch_samples: float
    """Of one pass over the data."""
    epochs: int | None
    """How many passes are complete when the data has ended (None: by the samples of one)."""
    updates: int | None
    """It ends after this many (None: after any number)."""
    micro_batch: int | None = None
    """Samples of one batch, where an algorithm does not say (None: all that it contributes to an update)."""


class Present(NamedTuple):
    """Who is there now."""

    place: int
    """This worker's among them."""
    num_workers: int
    is_divided_anew: bool
    """Whether shares are to be divided anew, because workers have gone or come."""


class Loops:
    """What `Batches` needs of the fleet."""

    def __init__(
        self,
        run: LoopRun,
        wrapped: Callable[[], Wrapped | None],
        progress: FleetProgress,
        digests: SampleDigests,
        taken_early: TakenEarly,
    ) -> None:
        self._run = run
        self._progress = progress
        self._epochs: int | None = None
        self._was_stopped = False
        # Asked for when a loop begins: a script may make its batches before it wraps its models, to schedule by their
        # number, or between one model and the next.
        self._wrapped = wrapped
        self._taken_early = taken_early
        self.digests = digests

    @property
    def member(self) -> Member:
        """This worker's place in the fleet as it was started."""
        return Member(self._run.rank, self._run.world_size, self._run.seed)

    @property
    def present(self) -> Present:
        """Who is there now."""
        return Present(self._run.place, self._run.num_workers, self._run.is_divided_anew)

    @property
    def next_number(self) -> int:
        """That of the loop that begins next."""
        return self._run.next_loop

    def check_free(self) -> None:
        """Raise if a loop runs."""
        if self._run.is_open and self._run.loop.is_waiting:
            raise InputError(
                "a loop over fleet.batches was begun within another one (zip?), but a fleet runs one at a time; end "
                "that before, or take the second data set from an ordinary DataLoader"
            )

    @property
    def dealt(self) -> Sequence[Places]:
        """The places that the running loop deals out now; none, when it is over."""
        return self._run.data.dealt or ()

    @property
    def deals(self) -> int:
        """How often what was left of a loop was dealt out anew."""
        return self._run.life.deals

    def begin(
        self, plan_of: Callable[[Sequence[Places]], LoopPlan], alike: dict[str, str], everything: Sequence[Places]
    ) -> int | None:
        """Begin a loop, when all ranks do, with the same of what must be alike.

        Returns:
            Its number; None: this rank was started again, and the others have been through that loop.

        Args:
            plan_of: How long it is to be, over some places.
            alike: What must be the same on all ranks.
            everything: The places that it deals out, unless some of them are left of a loop that was begun before.
        """
        run, wrapped = self._run, self._wrapped()
        if wrapped is None:
            raise InputError("fleet.batches needs a model; call fleet.wrap(model, optimizer) before the loop")
        if not run.is_open:
            check_not_inside(wrapped.models)
        run.data.check_resumed(alike, run.world_size)
        # Before anything of the loop exists: a rank that does something else would leave the others waiting in it.
        if run.presence.begin_loop(alike):
            return None
        if not run.is_open:
            batch_size = plan_of(everything).batch_size
            run.open(wrapped.model, wrapped.parameters, overlap=wrapped.overlap, batch_size=batch_size, alike=alike)
        if run.data.is_missed:
            run.data.is_missed = False
            return None
        # Only now: others may have begun it, and have left some of it, by the time that this rank comes to it.
        plan = plan_of(run.data.left_of_next(everything))
        # Before the coroutine begins, which may make an update at once, without data of this rank.
        said = _StoredNumber(run.store, f"batches of a step/{self.next_number}")
        self._progress.begin_loop(plan.batch_size, plan.samples, plan.epoch_samples, said)
        self._epochs, self._was_stopped = plan.epochs, False
        updates = math.inf if plan.updates is None else max(0, plan.updates - self._progress.updates_in_loop)
        sizes = plan.batch_size, plan.micro_batch
        number = run.begin_loop(sizes, everything, plan.places, updates)
        run.loop.is_running = True
        self._taken_early.begin_loop()
        return number

    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next."""
        return self._run.loop.wanted_samples()

    @property
    def least_samples(self) -> int:
        """Of a batch, where sizes vary.

        Some layers cannot learn from one sample (BatchNorm), and no script can know that it comes: as the last of the
        data, or on a slow machine.
        """
        return 1 if self._run.num_workers == 1 or self._run.loop.is_prescribed else 2

    def taking(self, number: int) -> Take:
        """Takes places that all workers share, in that loop."""
        return self._run.life.counters.claiming(number, self._run.place)

    def note(self, number: int, claim: Claim) -> None:
        """Note places of this worker's own."""
        self._run.life.counters.note(number, claim)

    def attempt(self, act: Callable[[], None]) -> bool:
        """Do something that may wait for others; returns False if what is left was dealt out anew instead."""
        return self._run.life.attempt(act)

    def say(self, number: int, about: str, words: str) -> dict[int, str]:
        """Say something about that loop; returns what other ranks have said about the same before."""
        store, rank = self._run.store, self._run.rank
        said = {other: f"said/{number}/{about}/{other}" for other in range(self._run.world_size)}
        # Said before it is looked at what others said: of two, one at least will hear the other.
        store.set(said.pop(rank), words)
        return {other: store.get(key).decode() for other, key in said.items() if store.check([key])}

    def hand_out(self, samples: int, batch: object) -> bool:
        """A batch of this many samples is about to be handed out; False: the run was stopped, or it is dealt anew."""
        # Here, too: an algorithm may go on for long without asking for anything that another rank has to bring.
        self._run.presence.check()
        loop = self._run.loop
        if not loop.is_waiting or loop.has_made_its_updates:
            self._was_stopped = True
            return False
        dropped = loop.dropped
        is_handed_out = self._run.hand_out(samples)
        self._taken_early.hand_out(batch, before_was_skipped=loop.dropped > dropped)
        return is_handed_out

    def end(self, *, stop: bool) -> bool:
        """End the loop; `stop`: before its data.

        Returns:
            Whether it has ended; if not, some data is left again.
        """
        if not self._run.end_loop(stop=stop):
            self._was_stopped = False  # by a rank that is gone: it goes on
            return False
        self._run.loop.is_running = False
        complete = self._run.data.is_complete and not self._was_stopped
        self._progress.end_loop(self._epochs if complete else None)
        wrapped = self._wrapped()
        # What was accumulated and never stepped with has been told of.
        if complete and wrapped is not None and not wrapped.parameters.keep_gradients:
            self._taken_early.end_loop()
        if not stop and self._run.interrupted:
            raise Interrupted(f"interrupted ({self._run.interrupted}); the model keeps what it has learnt so far")
        return True


class _StoredNumber:
    """How many batches ranks take for a step, in one place for all: few ever say something, and most look once."""

    def __init__(self, store: WatchedStore, key: str) -> None:
        self._store = store
        self._key = key

    def hear(self) -> int:
        return int(self._store.get(self._key)) if self._store.check([self._key]) else 0

    def say(self, batches: int) -> None:
        self._store.set(self._key, str(batches))
