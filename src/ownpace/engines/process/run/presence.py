"""That a rank is there: its line to rank 0, from `ownpace.join` to the end, whatever the rank is doing.

Rank 0 has a line to every other rank, and each of them one to rank 0. A line that ends, or on which heartbeats are not
answered, means that the rank is gone; rank 0 tells the others. On the same lines, ranks say what they have come to
(`run.roll`), and why they failed. A thread in each rank listens: a rank that computes, evaluates or saves for long
neither seems gone nor keeps the others from hearing of one that is.

The hub and its nodes come later, with the first loop, and know more about a failure of their own; this knows who is
alive. What has gone wrong is put into `orders.alarms`, which everything that waits looks at.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from ownpace.core.contract.errors import (
    InputError,
    MachineDied,
    OwnpaceError,
    PeerLost,
    ReplicasDiffer,
    SharedMemoryError,
    WireError,
)
from ownpace.engines.process.node.context import Orders
from ownpace.engines.process.run.agent_watch import AgentWatch, find_agent
from ownpace.engines.process.run.complaints import Complaints
from ownpace.engines.process.run.past import PastActs
from ownpace.engines.process.run.rendezvous import Environment, Rendezvous, silence_s
from ownpace.engines.process.run.roll import JOIN, LEAVE, LOOP, Roll
from ownpace.engines.process.talk.control import (
    Agreed,
    Control,
    Failed,
    GiveUp,
    Parted,
    Past,
    Refuse,
    Rejoin,
    Saved,
    Together,
)
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import read_when_set
from ownpace.engines.process.talk.wire import Limits, Packet, blamed, unpack_from

_TICK_S = 0.1
_EXPLAIN_S = 5.0
"""How long a rank that only suffers from the failure of another waits to hear whose it was."""
_COME_BACK_S = 2.0
"""How long a line may take to be made anew, where a run goes on without those that are gone."""
_PARTED_S = 60.0
"""How long rank 0 may be out of reach, where a run goes on: it does so without this rank, which joins anew."""
_HAS_FAILED = "the run has failed: "
_LIMITS = Limits((), 0)
log = logging.getLogger(__name__)


class Presence:
    """One rank's part in knowing that all are there. A rank that is alone has no lines, and waits for nobody."""

    def __init__(
        self, environment: Environment, store: SealedStore, rendezvous: Rendezvous, *, is_late: bool = False
    ) -> None:
        """`is_late`: the others have begun, and go on; this rank was started again."""
        self.orders = Orders()
        self.loops = 0
        """How many loops over the data this rank has begun."""
        self._rank = environment.rank
        self._ranks = range(environment.world_size)
        self._roll = Roll(environment.world_size)
        self._complaints = Complaints()
        self._parted: set[int] = set()
        self._gone: set[int] = set()
        self._late: set[int] = set()
        """On rank 0: ranks that are back, and have not come to a place with all others yet."""
        self._newest_save = ""
        self.past: PastActs | None = None
        """What this rank has missed, if it was started again."""
        self.describe: Callable[[], dict[str, float]] = dict
        """On rank 0: how far it is."""
        self._awaits_loop = False
        self._act: Together | None = None
        """What this rank has come to latest."""
        self.there: list[int] = list(self._ranks)
        """The ranks that came to the latest place where all were together."""
        self.on_wait: Callable[[], None] = _nothing
        """Called while this rank waits for others at such a place."""
        self._suspects: dict[str, float] = {}
        self._number = 0
        self._agreed = 0
        self._has_failed = self._is_over = self._closing = False
        # Guards all of the above, and the lines: the thread and the rank itself both send on them.
        self._changed = threading.Condition()
        self._silence_s = silence_s()
        self._agent = AgentWatch(self._lose_agent, find_agent())
        self._mailbox: Mailbox | None = None
        if len(self._ranks) > 1:
            self._begin(store, rendezvous, is_late=is_late)

    def _begin(self, store: SealedStore, rendezvous: Rendezvous, *, is_late: bool) -> None:
        """Open the lines, and meet the others."""
        with ExitStack() as stack:
            stack.callback(self._agent.close)  # if the others do not come
            self._mailbox = self._connect(store, rendezvous)
            stack.pop_all()
        self._thread = threading.Thread(target=self._listen, name="ownpace-presence", daemon=True)
        self._thread.start()
        try:
            if is_late:
                self._number = self._agreed = 1  # all have joined
                self.rejoin(rendezvous.timeout_s)
            else:
                # Nobody goes on before all lines are there: the end of one without would not be noticed.
                self.together(JOIN)
        except BaseException as error:
            self.fail(error)
            self.close()
            raise

    def _connect(self, store: SealedStore, rendezvous: Rendezvous) -> Mailbox:
        timeout_s = rendezvous.timeout_s
        mailbox = Mailbox(
            _name(self._rank),
            rendezvous.host,
            rendezvous.key,
            lambda name: read_when_set(store, f"presence/{name}", name, timeout_s).decode(errors="replace"),
            timeout_s=timeout_s,
            silence_s=self._silence_s,
            hears={_name(rank) for rank in self._ranks}.__contains__,
        )
        try:
            store.set(f"presence/{mailbox.name}", mailbox.contact)
            for other in self._ranks[1:] if self._rank == 0 else (0,):
                mailbox.connect(_name(other))
        except BaseException:
            mailbox.close(now=True)
            raise
        return mailbox

    def rejoin(self, timeout_s: float) -> None:
        """This rank was started again, or declared dead: hear from rank 0 what all have come to so far."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self.past = None
            self._send(0, Rejoin())
            while self.past is None and not self.orders.alarms:
                self._changed.wait(_TICK_S)
                if time.monotonic() > deadline:
                    raise MachineDied(f"rank 0 did not let rank {self._rank} in again within {timeout_s:g} s")
            if self.past is not None and self._agreed < self._number:
                # It was waiting for the others: they have been there meanwhile, or have forgotten that it has come.
                if self._number <= self.past.number:
                    self._agreed, self.there = self._number, self.past.there(self._number)
                elif self._act is not None:
                    self._send(0, self._act)
        self.check()

    def _readmit(self, rank: int) -> None:
        """On rank 0: a rank was started again. Without the lock, since it waits for an answer of that rank."""
        assert self._mailbox is not None
        self._mailbox.drop(_name(rank))  # the line to the process that had this rank before
        try:
            self._mailbox.connect(_name(rank))
        except OwnpaceError as error:  # gone again
            log.info("rank %s cannot be reached: %s", rank, error)
            return
        with self._changed:
            for each in (self._gone, self.orders.gone, self._parted):
                each.discard(rank)
            self._late.add(rank)
            self._roll.rejoin(rank)
            acts, ranks = [what for what, _ in self._roll.past], [there for _, there in self._roll.past]
            self._send(rank, Past(acts, ranks, self._roll.fingerprint, self.describe()))

    def is_back(self, rank: int) -> None:
        """On rank 0: a rank that was stopped, or cut off, takes part again."""
        with self._changed:
            for each in (self._gone, self.orders.gone):
                each.discard(rank)

    def check(self) -> None:
        """Raise what has gone wrong, if anything has."""
        self.orders.raise_alarms()

    def begin_loop(self, fingerprint: dict[str, str]) -> bool:
        """Begin a loop when all ranks do.

        Returns:
            Whether it is over already: this rank was started again, and the others have been through it.

        Raises:
            InputError: They begin different ones, or another rank does something else.
            MachineDied: A rank is gone.
        """
        self.loops += 1
        past = self.past
        if past is not None and past.skips:
            past.skips = False
            self._go_to_running_loop(past, fingerprint)
            return False
        if not self.together(LOOP, fingerprint) or past is None:
            return False
        if self._number < past.last_loop:
            return True
        past.check_loop(fingerprint)
        return False

    def _go_to_running_loop(self, past: PastActs, fingerprint: dict[str, str]) -> None:
        """Pass whatever all others have come to, up to the loop that runs or is the next."""
        self.loops = past.loops
        if past.in_loop:
            past.check_loop(fingerprint)
            self._number = self._agreed = past.last_loop
            return
        self.loops += 1
        with self._changed:
            self._awaits_loop = True
            self._send(0, Together(0, LOOP, self.loops, fingerprint))
        self._wait()

    def saved(self, path: str) -> None:
        """This rank has written a checkpoint: if all of them end, each knows what to go on from."""
        with self._changed:
            self._take_saved(self._rank, path)

    def _take_saved(self, rank: int, path: str) -> None:
        self._newest_save = path
        if self._rank == 0:
            for other in self._ranks[1:]:
                self._send(other, Saved(path))
        elif rank == self._rank:
            self._send(0, Saved(path))

    def leave(self) -> None:
        """Leave when all ranks do; raises as `begin_loop` does."""
        self.together(LEAVE)

    @property
    def number(self) -> int:
        """At how many places this rank was together with the others."""
        return self._number

    @property
    def is_behind(self) -> bool:
        """Whether the others have been at the next place already."""
        return self.past is not None and self._number < self.past.number

    def together(self, what: str, fingerprint: dict[str, str] | None = None) -> bool:
        """Wait until all ranks have come to the same place; raises as `begin_loop` does.

        Returns:
            Whether they had been there before this rank was started again.
        """
        self.check()
        if self._mailbox is None:
            return False
        with self._changed:
            is_behind = self.is_behind
            self._number += 1
            self._act = act = Together(self._number, what, self.loops, fingerprint or {})
            if is_behind and self.past is not None:
                self.past.check(self._number, act)
                self._agreed, self.there = self._number, self.past.there(self._number)
                return True
            if self._rank == 0:
                self._take(0, act)
            else:
                self._send(0, act)
        self._wait()
        return False

    @property
    def _is_waiting(self) -> bool:
        return (self._awaits_loop or self._agreed < self._number) and not self.orders.alarms

    def _wait(self) -> None:
        while True:
            # In short waits, so that Python can look at its signals.
            with self._changed:
                if self._is_waiting:
                    self._changed.wait(_TICK_S)
                if not self._is_waiting:
                    break
            # Without the lock: it may take long, and what comes meanwhile has to be heard.
            self.on_wait()
        self.check()

    def _listen(self) -> None:
        while not self._closing:
            try:
                self._look()
            except Exception as error:  # nobody would see it in a thread; without this one, ranks may wait for ever
                log.exception("presence")
                with self._changed:
                    self._alarm(MachineDied(f"rank {self._rank} cannot hear the others: {error}"))
                return

    def _look(self) -> None:
        assert self._mailbox is not None
        # Before messages: what a rank said before its line ended has arrived by then.
        lost = self._lost()
        wait_s = 0.0 if lost else _TICK_S
        while True:
            try:
                arrived = self._mailbox.receive(wait_s)
                if arrived is None:
                    break
                wait_s = 0.0
                name, packet = arrived[0], unpack_from(*arrived, _LIMITS)
                if isinstance(packet.control, Rejoin) and self._rank == 0 and _rank(name) in self._gone:
                    self._readmit(_rank(name))
                    continue
                with self._changed:
                    self._take(_rank(name), packet.control)
            except (WireError, SharedMemoryError) as error:  # most likely its sender died while writing
                wait_s = 0.0
                with self._changed:
                    self._complaints.add(error)
        with self._changed:
            # What the hub has found by now: it hears of some before.
            heard = self.orders.gone - self._gone if self.orders.goes_on else set[int]()
            for rank in {*lost, *heard}:
                self._lose(rank)
            for line in self._roll.late():
                log.warning("%s", line)
            verdict = self._complaints.verdict
            if verdict is not None:
                self._give_up(verdict)

    def _lost(self) -> list[int]:
        """The ranks whose lines have ended."""
        assert self._mailbox is not None
        lost, now = self._mailbox.lost(), time.monotonic()
        if not self.orders.goes_on:
            return [_rank(name) for name in lost]
        # A rank that was stopped, or cut off, and is back finds its line ended: it has a moment to be made anew.
        for name in lost:
            self._suspects.setdefault(name, now)
        for name in list(self._suspects):
            if self._mailbox.is_up(name):
                del self._suspects[name]
        return [_rank(name) for name, since_s in self._suspects.items() if now > since_s + self._patience_s(name)]

    def _patience_s(self, name: str) -> float:
        assert self._mailbox is not None
        # A host that says that nobody listens there knows; one that says nothing may only be cut off, or this one is.
        return _PARTED_S if self._rank and not self._mailbox.is_refused(name) else _COME_BACK_S

    def _take(self, rank: int, control: Control | None) -> None:
        match control:
            case Together() if rank in self._gone:
                pass  # it was stopped, or cut off, and has still to learn that it was declared dead
            case Together() if self._rank == 0:
                self._take_act(rank, control)
            case Agreed(number, ranks) if rank == 0 and self._awaits_loop:
                # The others may come to more before the next loop.
                self._number = self._agreed = number
                self._awaits_loop = self._rank not in ranks
                self._changed.notify_all()
            case Agreed(number, ranks) if rank == 0 and number == self._number and self._rank in ranks:
                self._agreed, self.there = number, ranks
                self._changed.notify_all()
            case Past() if rank == 0:
                self.past = PastActs(control, self._rank)
                self._changed.notify_all()
            case Refuse(message) if rank == 0:
                self._alarm(InputError(message))
            case Saved(path):
                self._take_saved(rank, path)
            case Failed() if rank in self._late:
                log.warning("rank %s, which was started again, has failed: %s; the others go on", rank, control.message)
                self._lose(rank)
            case Failed() if rank not in self._gone:  # the others have gone on without one that is
                self._complaints.add(control.error(f"rank {rank}"))
            case GiveUp(code, message) if rank == 0:
                kinds = {kind.code: kind for kind in (InputError, ReplicasDiffer)}  # of all ranks, not of one
                failed = PeerLost(_HAS_FAILED + message.removeprefix(_HAS_FAILED))
                self._alarm(kinds[code](message) if code in kinds else failed)
            case Parted():
                self._parted.add(rank)
                if self._awaits_loop and rank == 0:
                    self._alarm(MachineDied("the others have ended while this rank, started again, waited for a loop"))

    def _take_act(self, rank: int, act: Together) -> None:
        """On rank 0: a rank has come to a place."""
        if act.number == 0 and rank in self._late:
            answer = self._roll.await_loop(rank, act)
        else:
            # Each rank is at the first place that not all have come to: a rank elsewhere has lost count.
            if act.number != self._agreed + 1:
                raise blamed(_name(rank), WireError(f"{act} after {self._agreed} places"))
            answer = self._roll.take(rank, act)
        if isinstance(answer, Refuse) and rank in self._late:
            self._send(rank, answer)  # the others have been doing the same for long: it is this one that does not fit
            self._lose(rank)
        elif answer is not None:
            if isinstance(answer, Agreed):
                self._late -= set(answer.ranks)
            self._tell(answer)

    def _lose(self, rank: int) -> None:
        assert self._mailbox is not None
        self._suspects.pop(_name(rank), None)
        if self.orders.goes_on and rank and rank not in self._parted:
            self._late.discard(rank)
            log.info("rank %s is gone", rank)
            self.orders.gone.add(rank)
            self._gone.add(rank)
            answer = self._roll.lose(rank)
            if answer is not None:
                self._tell(answer)
            return  # and its line is kept: it may come back
        # Nothing more can be sent to it: closing would wait for that.
        self._mailbox.drop(_name(rank))
        if rank in self._parted:
            return
        self.orders.gone.add(rank)
        error = MachineDied(
            f"rank {rank} is gone: its process ended without a word, or did not answer for {self._silence_s:g} s; "
            f"the others cannot go on without it{self._how_to_go_on()}"
        )
        error.blame = f"rank {rank}"
        self._complaints.add(error)

    def _how_to_go_on(self) -> str:
        path = self._newest_save
        return f"; start all of them again, and go on with fleet.load({path!r})" if path else ""

    def _lose_agent(self) -> None:
        with self._changed:
            self._alarm(MachineDied("torchrun, which started this rank, is gone; the run cannot outlive it"))

    def _give_up(self, error: OwnpaceError) -> None:
        if self._is_over:
            return
        if self._rank == 0:
            for rank in self._ranks[1:]:
                self._send(rank, GiveUp(error.code, str(error)))
        self._alarm(error)

    def _alarm(self, error: OwnpaceError) -> None:
        self._is_over = True
        self.orders.alarms.append(error)
        self._changed.notify_all()

    def _tell(self, control: Agreed | Refuse) -> None:
        """Tell all ranks, this one included."""
        for rank in self._ranks[1:]:
            self._send(rank, control)
        self._take(0, control)

    def _send(self, rank: int, control: Control) -> None:
        if self._mailbox is None:
            return  # this rank is alone
        # A line that has ended is gone; a new one would be waited for.
        if self._mailbox.knows(_name(rank)):
            self._mailbox.send(_name(rank), Packet(control=control))

    def __enter__(self) -> Presence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank has failed, and why."""
        with self._changed:
            self._has_failed = True
            if self._mailbox is None or self._is_over:
                return  # they know
            failed = Failed.of(f"rank {self._rank}", error)
            if self._rank == 0:
                self._complaints.add(failed.error("rank 0"))
            else:
                self._send(0, failed)

    def explained(self, error: OwnpaceError) -> OwnpaceError:
        """Why this rank's node failed: what rank 0 knows about it, if this rank only suffers from it."""
        if self._mailbox is None or not error.is_consequence:
            return error
        self.fail(error)
        return self._awaited_alarm() or error

    def _awaited_alarm(self) -> OwnpaceError | None:
        deadline = time.monotonic() + _EXPLAIN_S
        with self._changed:
            while not self.orders.alarms and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, _TICK_S))
            return self.orders.alarms[0] if self.orders.alarms else None

    def close(self) -> None:
        """End this rank's part."""
        self._agent.close()
        if self._mailbox is None:
            return
        if self._has_failed and self._rank == 0:
            self._awaited_alarm()  # the others hear from this rank why the run has failed
        with self._changed:
            for rank in self._ranks:
                if not self._mailbox.is_up(_name(rank)):
                    self._mailbox.drop(_name(rank))  # closing would wait until it can be sent to
            for rank in [] if self._has_failed else self._ranks:
                if rank != self._rank:
                    self._send(rank, Parted())
            self._closing = True
        self._thread.join()
        self._mailbox.close()
        self._mailbox = None


def _nothing() -> None:
    pass


def _name(rank: int) -> str:
    return f"rank-{rank}"


def _rank(name: str) -> int:
    return int(name.removeprefix("rank-"))
