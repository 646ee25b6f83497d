"""The run behind `ownpace.join`: a session with one worker, whose gradients come from a user's own loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.optim import Optimizer

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.claims import Places
from ownpace.engines.process.lives.loop_data import LoopData
from ownpace.engines.process.lives.loop_life import LoopLife
from ownpace.engines.process.lives.loop_parts import Script
from ownpace.engines.process.lives.sharing import agree, shared_counter, take_from_servers, tell_of_parts
from ownpace.engines.process.meet.environment import Environment
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store, meet
from ownpace.engines.process.node.loop import UserLoop
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.presence.presence import Presence
from ownpace.engines.process.presence.readmission import is_under_way
from ownpace.engines.process.run.opening import FleetOptions, Opened, Opening
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import WatchedStore
from ownpace.engines.progress import Progress

_MAY_RAISE_S = 0.2
"""How long a rank that has left its loop may take to say that it has failed."""


class LoopRun:
    """This process's part in the run: it meets the others first, and is opened by the first loop over the data."""

    def __init__(self, options: FleetOptions, environment: Environment, *, alone: bool) -> None:
        self._options = options
        self._environment = environment
        self._alone = alone
        self._stack = ExitStack()
        self._opened: Opened | None = None
        self._is_unchecked = self._was_left = False
        self.interrupted = ""
        """Which rank a signal asked to end in the latest loop; nothing: none. All ranks know it alike."""
        self.data = LoopData()
        self.has_met = False
        """Whether the other ranks are there."""
        self.is_over = False
        self.script: Script
        """What else the script has that is the same on all ranks."""
        self.on_progress: Callable[[Progress, int], None] = _ignore
        """Called after every update that this process makes or hears of, and after its local steps, with the samples
        of those since the last update."""

    def meet(self) -> None:
        """Meet the other ranks."""
        self._store: SealedStore
        if self._alone:
            self._own_store, port = local_store()  # kept: its server lives as long as this object
            secret = RunKey.new().secret
            self._rendezvous = Rendezvous(LOOPBACK, port, "", secret, LOOPBACK, "gloo", self._options.timeout_s)
            self._store = self._rendezvous.open_store()
        else:
            self._store, self._rendezvous = meet(self._environment, self._options.timeout_s)
        is_late = self.rank > 0 and is_under_way(self._store)
        self.presence = Presence(self._environment, self._store, self._rendezvous, is_late=is_late)
        self.store = WatchedStore(self._store, self.presence.check)
        self.has_met = True

    def go_to_running_loop(self) -> None:
        """The script has asked how far the fleet is: if it was started again, it begins there."""
        if self._opened is None and self.has_met and self.presence.past is not None:
            self.presence.past.skips = True

    @property
    def next_loop(self) -> int:
        """The number of the loop that begins next."""
        past = self.presence.past if self.has_met and self._opened is None else None
        return self.data.generation + 1 if past is None else past.number_of_next(self.presence.place.loops)

    def describe(self) -> dict[str, float]:
        """How many loops have begun, in this run and before it."""
        return {"begun": self.data.begun, "before": self.data.generation - self.data.begun}

    @property
    def is_open(self) -> bool:
        """Whether there has been a loop."""
        return self._opened is not None

    @property
    def loop(self) -> UserLoop:
        """The user's loop."""
        assert self._opened is not None
        return self._opened.loop

    def open(
        self,
        model: nn.Module,
        user: UserParameters,
        *,
        overlap: bool | None,
        batch_size: int,
        alike: Mapping[str, object],
    ) -> None:
        """Start the run: servers, the hub on rank 0, and this worker's place in it.

        Args:
            model: The user's.
            user: Its parameters.
            overlap: Whether layers are sent during the backward pass (None: where that is safe).
            batch_size: Of the first loop.
            alike: What must be the same on all ranks, besides model, optimizer and algorithm.
        """
        stores = self._store, self.store, self._rendezvous
        opening = Opening(
            self._options, self._environment, *stores, self.presence, self.data, self.script, self._progressed
        )
        with ExitStack() as stack:  # closes what was opened, if the others refuse or do not come
            self._opened = opening.open(stack, model, user, overlap=overlap, batch_size=batch_size, alike=alike)
            self._stack = stack.pop_all()
        if len(self.life.node.servers):
            self._watch_state(user.pairs[0].optimizer)

    def _watch_state(self, optimizer: Optimizer) -> None:
        """Servers hold its state: a script that saves it has theirs, and one that loads another is told."""

        def refuse(_: Optimizer) -> None:
            raise InputError(
                "the optimizer was given another state after the first loop over fleet.batches, but parameter servers "
                "hold it and would not know; load it before, or use an algorithm without servers, such as stride"
            )

        assert self._opened is not None
        saving = optimizer.register_state_dict_pre_hook(lambda _: self.take_optimizer_state())
        loading = optimizer.register_load_state_dict_post_hook(refuse)
        self._opened.hooks.callback(saving.remove)
        self._opened.hooks.callback(loading.remove)

    def _progressed(self, worker: ProcessWorker, local_samples: int) -> None:
        self.on_progress(worker.progress, local_samples)

    @property
    def life(self) -> LoopLife:
        """This rank, over all generations."""
        assert self._opened is not None
        return self._opened.life

    def begin_loop(
        self, sizes: tuple[int, int | None], everything: Sequence[Places], most: float, updates: float = math.inf
    ) -> int:
        """Begin a loop over these places, or over what is left of them; returns its number.

        `sizes` are those of what a worker contributes to an update, and of one batch at most (None: all of it);
        `most` is how many samples there are at most.

        It also ends after this many updates: on all ranks after the same one; where servers make them, a worker's
        gradient that is under way by then is still applied.
        """
        self.loop.prepare(self._options.algorithm, sizes, updates)
        number = self.data.begin_loop(self.life.node, everything)
        self.life.attempt(lambda: self.loop.begin(number, most))
        return number

    def hand_out(self, samples: int) -> bool:
        """The script is to get a batch; returns False if what was left was dealt out anew meanwhile."""

        def hand_out() -> None:
            self.life.node.inbox.wants_stop()  # which looks for what has come, now and then
            self.loop.hand_out(samples)

        return self.life.attempt(hand_out)

    def take_gradient(self, number: int) -> None:
        """The script has called `step()` of one of its optimizers."""
        self.life.attempt(lambda: self.loop.take_gradient(number))

    def left(self) -> list[Places] | None:
        """The places that the running loop has still to learn from; None: none runs, and no checkpoint waits."""
        if self.data.dealt is None or self._opened is None:
            return None if self.data.resumed is None else list(self.data.resumed)
        node, claims = self.life.node, self.life.counters.claims(self.data.generation, self.num_workers)
        return self.data.left(claims, node.learner.used, node.progress.samples)

    def end_loop(self, *, stop: bool) -> bool:
        """Bring a loop to its end on all workers; `stop`: it was left before its data had ended.

        Returns:
            Whether it has ended; if not, data is left again, since a rank is gone that had taken it.
        """
        if self.is_over or self.loop.has_failed:
            self.data.is_complete = False
            return True
        self.presence.check()  # before the store is asked for anything: it may be gone, too
        # It may be over already: for another rank, and so for this one.
        while self.data.dealt is not None and not self.life.attempt(lambda: self._finish(stop=stop)):
            if self.data.dealt and not stop:
                return False
        if not stop and self._was_left:
            # What a script raises leaves its loop as a `break` does, and is told of only at the end of the `with`. It
            # must be known here: after a loop, a script may save the model.
            self.presence.listen(_MAY_RAISE_S)
        self.on_progress(self.life.node.progress, 0)
        self.loop.leave()
        self._is_unchecked = stop  # a loop that was left cannot raise any more: its iterator is being thrown away
        if not stop:
            self.loop.check()
        return True

    def _finish(self, *, stop: bool) -> None:
        """End the loop with all others."""
        assert self._opened is not None
        # Names of this generation: in an earlier one, others may have come to the end that are gone now.
        count_left = shared_counter(self.store, f"left/{self.life.stamp}")
        if stop:
            count_left(1)  # before the others can hear of it: they look when their part has ended
            self.loop.tell_to_stop()
        interrupted = f"interrupted/{self.life.stamp}"
        if self._opened.session.orders.stops:  # the others only hear that the loop ends, as if its data had
            self.store.set(interrupted, f"rank {self.rank} got {self._opened.session.orders.stops[0]}")
        self.loop.finish(shared_counter(self.store, f"ended/{self.life.stamp}"))
        agree(self.life.node, self._opened.model)
        tell_of_parts(self.life.node, self._opened.model, self._opened.user)
        self.interrupted = self.store.get(interrupted).decode() if self.store.check([interrupted]) else ""
        self._was_left = count_left(0) > 0
        self.data.end_loop(complete=not (self.loop.has_made_its_updates or self._was_left))

    def let_go(self) -> None:
        """Free the user's models of everything that was put on them."""
        if self._opened is not None:
            if not self.is_over:
                self.take_optimizer_state()
            self._opened.hooks.close()

    def take_optimizer_state(self) -> None:
        """Let the user's optimizer have what servers have made of its state by now."""
        if self._opened is not None and not self.loop.is_free:
            pair = self._opened.user.pairs[0]
            self.life.insist(lambda: take_from_servers(self.life.node, pair))

    @contextmanager
    def at_global_parameters(self) -> Iterator[None]:
        """Let the user's model have the global parameters for a while."""
        with self.loop.at_global_parameters(self.life.insist(self.loop.pulled)):
            yield

    @property
    def rank(self) -> int:
        """This process's, among the workers."""
        return self._environment.rank

    @property
    def num_workers(self) -> int:
        """How many there are now."""
        return self._environment.world_size if self._opened is None else len(self.life.node.workers)

    @property
    def place(self) -> int:
        """This process's, among those that are there now."""
        return self.rank if self._opened is None else self.life.node.rank

    @property
    def is_divided_anew(self) -> bool:
        """Whether workers have gone or come."""
        return self._opened is not None and self.life.node.context.generation > 0

    @property
    def world_size(self) -> int:
        """How many ranks were started."""
        return self._environment.world_size

    @property
    def seed(self) -> int:
        """Of the order of the samples."""
        return self._options.seed

    def close(self, error: BaseException | None) -> list[str]:
        """End this process's part; `error` is what the user's script raised.

        Returns:
            The first, the evaluating and the last record of the run, as lines; none, if there was no loop.

        Raises:
            OwnpaceError: The run has failed.
        """
        self.is_over = error is not None
        lines: list[str] = []
        try:
            if error is None:
                with self._stack:  # the node first: if it failed, the hub has to hear why before it ends
                    lines = self._end()
            else:
                # First: leaving the rest waits for the hub, and for sums that are under way.
                self.presence.fail(error)
                # As if it had been raised in here, but without these lines in the user's traceback.
                self._stack.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            self.presence.fail(raised)
            raise
        finally:
            self.is_over = True
            # Last: until now, a rank that is gone has to be noticed.
            self.presence.close()
            self.store.close()
        return lines

    def _end(self) -> list[str]:
        """End in order, together with all other ranks."""
        if self._opened is not None and self.loop.is_waiting:  # the loop was left, and its iterator is still held
            self.end_loop(stop=True)
        if self._is_unchecked:
            self.loop.check()
        if self._opened is not None:
            self.take_optimizer_state()
        # Before the hub is told that this worker has ended: it would wait for the others, whatever they do.
        self.presence.leave()
        return [] if self._opened is None else self.life.end()


def _ignore(*what: object) -> None:
    pass
