"""That a rank is there: its line to rank 0, from `ownpace.join` to the end, whatever the rank is doing.

The hub and its nodes come later, with the first loop, and know more about a failure of their own; this knows who is
alive, and lets ranks come together (`presence.roll`). What has gone wrong is put into `orders.alarms`, which everything
that waits looks at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from ownpace.core.contract.errors import MachineDied, OwnpaceError
from ownpace.engines.process.meet.agent_watch import AgentWatch, find_agent
from ownpace.engines.process.meet.environment import Environment, silence_s
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.node.context import Orders
from ownpace.engines.process.presence.lines import RankLines
from ownpace.engines.process.presence.listener import TICK_S, RankListener
from ownpace.engines.process.presence.past import PastActs
from ownpace.engines.process.presence.place import RankPlace
from ownpace.engines.process.presence.roll import JOIN, LEAVE, LOOP
from ownpace.engines.process.talk.control import Failed
from ownpace.engines.process.talk.rank_control import Rejoin
from ownpace.engines.process.talk.sealed_store import SealedStore

_EXPLAIN_S = 5.0
"""How long a rank that only suffers from the failure of another waits to hear whose it was."""


class Presence:
    """One rank's part in knowing that all are there. A rank that is alone has no lines, and waits for nobody."""

    def __init__(
        self, environment: Environment, store: SealedStore, rendezvous: Rendezvous, *, is_late: bool = False
    ) -> None:
        """`is_late`: the others have begun, and go on; this rank was started again."""
        self.orders = Orders()
        self.place = RankPlace(environment.world_size)
        self.on_wait: Callable[[], None] = _nothing
        """Called while this rank waits for others at a place where all come together."""
        self.describe: Callable[[], dict[str, float]] = dict
        """On rank 0: how far it is, for a rank that was started again."""
        self._rank = environment.rank
        self._has_failed = False
        self._listener: RankListener | None = None
        self._agent = AgentWatch(self._lose_agent, find_agent())
        if environment.world_size > 1:
            self._begin(environment.world_size, store, rendezvous, is_late=is_late)

    def _begin(self, num_ranks: int, store: SealedStore, rendezvous: Rendezvous, *, is_late: bool) -> None:
        """Open the lines, and meet the others."""
        with ExitStack() as stack:
            stack.callback(self._agent.close)  # if the others do not come
            lines = RankLines(self._rank, range(num_ranks), store, rendezvous, silence_s())
            stack.pop_all()
        place, describe = self.place, lambda: self.describe()
        self._listener = RankListener(self._rank, num_ranks, lines, self.orders, place, describe)
        try:
            if is_late:
                place.join_late()
                self.rejoin(rendezvous.timeout_s)
            else:
                # Nobody goes on before all lines are there: the end of one without would not be noticed.
                self.together(JOIN)
        except BaseException as error:
            self.fail(error)
            self.close()
            raise

    @property
    def past(self) -> PastActs | None:
        """What this rank has missed, if it was started again."""
        return self.place.past

    def check(self) -> None:
        """Raise what has gone wrong, if anything has."""
        self.orders.raise_alarms()

    def listen(self, seconds: float) -> None:
        """Wait that long for what may go wrong, and raise it."""
        if self._listener is not None:
            self._awaited_alarm(self._listener, seconds)
        self.check()

    # ---- coming together ----

    def begin_loop(self, fingerprint: dict[str, str]) -> bool:
        """Begin a loop when all ranks do.

        Returns:
            Whether it is over already: this rank was started again, and the others have been through it.

        Raises:
            InputError: They begin different ones, or another rank does something else.
            MachineDied: A rank is gone.
        """
        self.place.loops += 1
        if self.past is None or not self.past.skips or self._listener is None:
            return self.together(LOOP, fingerprint) and self.place.is_loop_over(fingerprint)
        with self._listener.changed:
            next_loop = self.place.skip_to_loop(self.past, fingerprint)
            if next_loop is not None:
                self._listener.say(next_loop)
        self._wait(self._listener)
        return False

    def leave(self) -> None:
        """Leave when all ranks do; raises as `begin_loop` does."""
        self.together(LEAVE)

    def together(self, what: str, fingerprint: dict[str, str] | None = None) -> bool:
        """Wait until all ranks have come to the same place; raises as `begin_loop` does.

        Returns:
            Whether they had been there before this rank was started again.
        """
        self.check()
        if self._listener is None:
            return False
        with self._listener.changed:
            act = self.place.come_to_next(what, fingerprint or {})
            if act is None:
                return True
            self._listener.say(act)
        self._wait(self._listener)
        return False

    @property
    def _is_waiting(self) -> bool:
        return self.place.is_waiting and not self.orders.alarms

    def _wait(self, listener: RankListener) -> None:
        while True:
            # In short waits, so that Python can look at its signals.
            with listener.changed:
                if self._is_waiting:
                    listener.changed.wait(TICK_S)
                if not self._is_waiting:
                    break
            # Without the lock: it may take long, and what comes meanwhile has to be heard.
            self.on_wait()
        self.check()

    def rejoin(self, timeout_s: float) -> None:
        """This rank was started again, or declared dead: hear from rank 0 what all have come to so far."""
        assert self._listener is not None
        deadline = time.monotonic() + timeout_s
        with self._listener.changed:
            self.place.past = None
            self._listener.say(Rejoin())
            while self.past is None and not self.orders.alarms:
                self._listener.changed.wait(TICK_S)
                if time.monotonic() > deadline:
                    raise MachineDied(f"rank 0 did not let rank {self._rank} in again within {timeout_s:g} s")
            again = self.place.catch_up()
            if again is not None:
                self._listener.say(again)
        self.check()

    def is_back(self, rank: int) -> None:
        """On rank 0: a rank that was stopped, or cut off, takes part again."""
        if self._listener is not None:
            self._listener.is_back(rank)

    @property
    def hears_first(self) -> bool:
        """Whether rank 0 can be reached; it may be gone, or silent for as long as a rank waits for it."""
        return self._listener is None or self._listener.hears_first

    def saved(self, path: str) -> None:
        """This rank has written a checkpoint: if all of them end, each knows what to go on from."""
        if self._listener is not None:
            self._listener.saved(path)

    # ---- failing, and the end ----

    def _lose_agent(self) -> None:
        error = MachineDied("torchrun, which started this rank, is gone; the run cannot outlive it")
        if self._listener is None:
            self.orders.alarms.append(error)
        else:
            with self._listener.changed:
                self._listener.alarm(error)

    def __enter__(self) -> Presence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank has failed, and why."""
        self._has_failed = True
        if self._listener is None:
            return
        with self._listener.changed:
            if not self._listener.is_over:  # otherwise they know
                self._listener.say(Failed.of(f"rank {self._rank}", error))

    def explained(self, error: OwnpaceError) -> OwnpaceError:
        """Why this rank's node failed: what rank 0 knows about it, if this rank only suffers from it."""
        if self._listener is None or not error.is_consequence:
            return error
        self.fail(error)
        return self._awaited_alarm(self._listener, _EXPLAIN_S) or error

    def _awaited_alarm(self, listener: RankListener, seconds: float) -> OwnpaceError | None:
        deadline = time.monotonic() + seconds
        with listener.changed:
            while not self.orders.alarms and (left := deadline - time.monotonic()) > 0:
                listener.changed.wait(min(left, TICK_S))
            return self.orders.alarms[0] if self.orders.alarms else None

    def close(self) -> None:
        """End this rank's part."""
        self._agent.close()
        if self._listener is None:
            return
        if self._has_failed and self._rank == 0:
            self._awaited_alarm(self._listener, _EXPLAIN_S)  # the others hear from this rank why the run has failed
        self._listener.close(in_order=not self._has_failed)
        self._listener = None


def _nothing() -> None:
    pass
