"""What a rank hears from the others, in a thread of its own, and what it does about it.

A line that ends, or on which heartbeats are not answered, means that the rank is gone; rank 0 tells the others. On the
same lines, ranks say what they have come to, and why they failed. Because it is a thread that listens, a rank that
computes, evaluates or saves for long neither seems gone nor keeps the others from hearing of one that is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ownpace.core.contract.errors import (
    InputError,
    MachineDied,
    OwnpaceError,
    PeerLost,
    ReplicasDiffer,
    SharedMemoryError,
    WireError,
)
from ownpace.engines.process.meet.complaints import Complaints
from ownpace.engines.process.meet.environment import silence_s
from ownpace.engines.process.node.context import Orders
from ownpace.engines.process.presence.attendance import Attendance
from ownpace.engines.process.presence.lines import RankLines, sent_what_no_rank_sends
from ownpace.engines.process.presence.past import PastActs
from ownpace.engines.process.presence.place import RankPlace
from ownpace.engines.process.talk.control import Control, Failed, GiveUp, Refuse
from ownpace.engines.process.talk.rank_control import Agreed, Parted, Past, Rejoin, Saved, Together

TICK_S = 0.1
_HAS_FAILED = "the run has failed: "
log = logging.getLogger(__name__)


class RankListener:
    """Takes in what the others say."""

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        lines: RankLines,
        orders: Orders,
        place: RankPlace,
        describe: Callable[[], dict[str, float]],
    ) -> None:
        """`describe`: on rank 0, how far it is."""
        self.complaints = Complaints()
        self.is_over = False
        """Whether it is known why all of them end."""
        # Guards all that is here, the place and the lines: the thread and the rank itself both send on them.
        self.changed = threading.Condition()
        self._rank = rank
        self._ranks = range(num_ranks)
        self._lines = lines
        self._orders = orders
        self._place = place
        self._describe = describe
        self._attendance = Attendance(num_ranks)
        self._parted: set[int] = set()
        self._newest_save = ""
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="ownpace-presence", daemon=True)
        self._thread.start()

    def say(self, control: Control) -> None:
        """Tell rank 0 something; on rank 0, it is heard at once. With the lock."""
        if self._rank == 0:
            self._take(0, control)
        else:
            self._lines.send(0, control)

    def is_back(self, rank: int) -> None:
        """On rank 0: a rank that was stopped, or cut off, takes part again."""
        with self.changed:
            for each in (self._attendance.gone, self._orders.gone):
                each.discard(rank)

    def _listen(self) -> None:
        while not self._closing:
            try:
                self._look()
            except Exception as error:  # nobody would see it in a thread; without this one, ranks may wait for ever
                log.exception("presence")
                with self.changed:
                    self.alarm(MachineDied(f"rank {self._rank} cannot hear the others: {error}"))
                return

    def _look(self) -> None:
        # Before messages: what a rank said before its line ended has arrived by then.
        with self.changed:  # closing must not take a line away that is being looked at
            lost = self._lines.lost(may_return=self._orders.goes_on)
        self._hear(0.0 if lost else TICK_S)
        with self.changed:
            # What the hub has found by now: it hears of some before.
            is_told = self._rank == 0 and self._orders.goes_on
            heard = self._orders.gone - self._attendance.gone if is_told else set[int]()
            for rank in {*lost, *heard}:
                self._lose(rank)
            for line in self._attendance.roll.late():
                log.warning("%s", line)
            verdict = self.complaints.verdict
            if verdict is not None:
                self._give_up(verdict)

    def _hear(self, wait_s: float) -> None:
        """Take in what has arrived; wait for it at most this long."""
        while True:
            try:
                arrived = self._lines.receive(wait_s)
                if arrived is None:
                    return
                wait_s = 0.0
                rank, control = arrived
                if isinstance(control, Rejoin) and self._rank == 0 and rank in self._attendance.gone:
                    self._readmit(rank)
                    continue
                with self.changed:
                    self._take(rank, control)
            except (WireError, SharedMemoryError) as error:  # most likely its sender died while writing
                wait_s = 0.0
                with self.changed:
                    self.complaints.add(error)

    def _readmit(self, rank: int) -> None:
        """On rank 0: a rank was started again. Without the lock, since it waits for an answer of that rank."""
        try:
            self._lines.renew(rank)
        except OwnpaceError as error:  # gone again
            log.info("rank %s cannot be reached: %s", rank, error)
            return
        with self.changed:
            for each in (self._orders.gone, self._parted):
                each.discard(rank)
            self._lines.send(rank, self._attendance.readmit(rank, self._describe()))

    def _take(self, rank: int, control: Control | None) -> None:
        match control:
            case Together() if rank in self._attendance.gone:
                pass  # it was stopped, or cut off, and has still to learn that it was declared dead
            case Together() if self._rank == 0:
                self._take_act(rank, control)
            case Agreed(number, ranks) if rank == 0:
                self._place.take_agreed(number, ranks, self._rank)
                self.changed.notify_all()
            case Past() if rank == 0:
                self._place.past = PastActs(control, self._rank)
                self.changed.notify_all()
            case Refuse(message) if rank == 0:
                self.alarm(InputError(message))
            case Saved(path):
                self._take_saved(path)
            case Failed() if rank in self._attendance.late:
                log.warning("rank %s, which was started again, has failed: %s; the others go on", rank, control.message)
                self._lose(rank)
            case Failed() if rank not in self._attendance.gone:  # the others have gone on without one that is
                self.complaints.add(control.error(f"rank {rank}"))
            case GiveUp(code, message) if rank == 0:
                kinds = {kind.code: kind for kind in (InputError, ReplicasDiffer)}  # of all ranks, not of one
                failed = PeerLost(_HAS_FAILED + message.removeprefix(_HAS_FAILED))
                self.alarm(kinds[code](message) if code in kinds else failed)
            case Parted():
                self._parted.add(rank)
                if self._place.awaits_loop and rank == 0:
                    self.alarm(MachineDied("the others have ended while this rank, started again, waited for a loop"))

    def _take_act(self, rank: int, act: Together) -> None:
        """On rank 0: a rank has come to a place."""
        is_late = rank in self._attendance.late
        # Each rank is at the first place that not all have come to: a rank elsewhere has lost count.
        if act.number != self._place.agreed + 1 and not (is_late and act.number == 0):
            raise sent_what_no_rank_sends(rank, f"{act} after {self._place.agreed} places")
        answer = self._attendance.take(rank, act)
        if isinstance(answer, Refuse) and is_late:
            # The others have been doing the same for long: it is this one that does not fit.
            self._lines.send(rank, answer)
            self._lose(rank)
        elif answer is not None:
            self._tell(answer)

    def _lose(self, rank: int) -> None:
        self._lines.forget_suspicion(rank)
        # One that the hub has let go has parted, and is gone all the same: it may be started again.
        if self._orders.goes_on and rank and (rank not in self._parted or rank in self._orders.gone):
            log.info("rank %s is gone", rank)
            self._orders.gone.add(rank)
            answer = self._attendance.lose(rank)
            if answer is not None:
                self._tell(answer)
            return  # and its line is kept: it may come back
        # Nothing more can be sent to it: closing would wait for that.
        self._lines.drop(rank)
        if rank in self._parted:
            return
        self._orders.gone.add(rank)
        error = MachineDied(
            f"rank {rank} is gone: its process ended without a word, or did not answer for {silence_s():g} s; "
            f"the others cannot go on without it{self._how_to_go_on()}"
        )
        error.blame = f"rank {rank}"
        self.complaints.add(error)

    def _take_saved(self, path: str) -> None:
        """A rank has written a checkpoint: if all of them end, each knows what to go on from."""
        self._newest_save = path
        if self._rank == 0:
            for other in self._ranks[1:]:
                self._lines.send(other, Saved(path))

    @property
    def hears_first(self) -> bool:
        """Whether the line to rank 0 is there."""
        return self._rank == 0 or self._lines.is_up(0)

    def saved(self, path: str) -> None:
        """This rank has written a checkpoint."""
        with self.changed:
            self._newest_save = path
            self.say(Saved(path))

    def _how_to_go_on(self) -> str:
        path = self._newest_save
        return f"; start all of them again, and go on with fleet.load({path!r})" if path else ""

    def _give_up(self, error: OwnpaceError) -> None:
        if self.is_over:
            return
        if self._rank == 0:
            for rank in self._ranks[1:]:
                self._lines.send(rank, GiveUp(error.code, str(error)))
        self.alarm(error)

    def alarm(self, error: OwnpaceError) -> None:
        """All of them end, and why. With the lock."""
        self.is_over = True
        self._orders.alarms.append(error)
        self.changed.notify_all()

    def _tell(self, control: Agreed | Refuse) -> None:
        """Tell all ranks, this one included."""
        for rank in self._ranks[1:]:
            self._lines.send(rank, control)
        self._take(0, control)

    def close(self, *, in_order: bool) -> None:
        """Stop listening; unless it is in order, the others are not told that this rank has parted."""
        with self.changed:
            for rank in self._ranks:
                # One that has parted is gone, or about to be: what is sent to it now would be waited for.
                if rank in self._parted or not self._lines.is_up(rank):
                    self._lines.drop(rank)
            for rank in self._ranks if in_order else ():
                if rank != self._rank and rank not in self._parted:
                    self._lines.send(rank, Parted())
            self._closing = True
        self._thread.join()
        self._lines.close()
