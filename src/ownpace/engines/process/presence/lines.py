"""The lines between ranks: rank 0 has one to every other rank, and each of them one to rank 0."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ownpace.core.contract.errors import WireError
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.talk.control import Control
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import read_when_set
from ownpace.engines.process.talk.wire import Packet, blamed, unpack_from
from ownpace.engines.process.talk.wire_header import Limits

_COME_BACK_S = 2.0
"""How long a line may take to be made anew, where a run goes on without those that are gone."""
_PARTED_S = 60.0
"""How long rank 0 may be out of reach, where a run goes on: it does so without this rank, which joins anew."""
_LIMITS = Limits((), 0)


class RankLines:
    """Those of one rank."""

    def __init__(
        self, rank: int, ranks: Sequence[int], store: SealedStore, rendezvous: Rendezvous, silence_s: float
    ) -> None:
        """`silence_s`: how long a rank may not answer before its line has ended."""
        timeout_s = rendezvous.timeout_s
        self._rank = rank
        self._suspects: dict[int, float] = {}
        """Ranks whose lines have ended, and since when; they may be made anew."""
        self._mailbox = Mailbox(
            _name(rank),
            rendezvous.host,
            rendezvous.key,
            lambda name: read_when_set(store, f"presence/{name}", name, timeout_s).decode(errors="replace"),
            timeout_s=timeout_s,
            silence_s=silence_s,
            hears={_name(each) for each in ranks}.__contains__,
        )
        try:
            store.set(f"presence/{self._mailbox.name}", self._mailbox.contact)
            for other in ranks[1:] if rank == 0 else (0,):
                self._mailbox.connect(_name(other))
        except BaseException:
            self._mailbox.close(now=True)
            raise

    def send(self, rank: int, control: Control) -> None:
        """Tell a rank something, if its line has not ended for good: a new one would be waited for."""
        if self._mailbox.knows(_name(rank)):
            self._mailbox.send(_name(rank), Packet(control=control))

    def receive(self, wait_s: float) -> tuple[int, Control | None] | None:
        """What a rank says next, and which; None: nothing came in this time.

        Raises:
            WireError: It is not what ranks say.
        """
        arrived = self._mailbox.receive(wait_s)
        return None if arrived is None else (_rank(arrived[0]), unpack_from(*arrived, _LIMITS).control)

    def lost(self, *, may_return: bool) -> list[int]:
        """The ranks whose lines have ended; where they may return, those that have not done so for long enough."""
        lost, now = [_rank(name) for name in self._mailbox.lost()], time.monotonic()
        if not may_return:
            return lost
        # A rank that was stopped, or cut off, and is back finds its line ended: it has a moment to be made anew.
        for rank in lost:
            self._suspects.setdefault(rank, now)
        for rank in [rank for rank in self._suspects if self.is_up(rank)]:
            del self._suspects[rank]
        return [rank for rank, since_s in self._suspects.items() if now > since_s + self._patience_s(rank)]

    def _patience_s(self, rank: int) -> float:
        # A host that says that nobody listens there knows; one that says nothing may only be cut off, or this one is.
        return _PARTED_S if self._rank and not self._mailbox.is_refused(_name(rank)) else _COME_BACK_S

    def forget_suspicion(self, rank: int) -> None:
        """It is known what became of this rank."""
        self._suspects.pop(rank, None)

    def is_up(self, rank: int) -> bool:
        """Whether a rank answers, as far as `lost` has seen."""
        return self._mailbox.is_up(_name(rank))

    def drop(self, rank: int) -> None:
        """Forget the line to a rank that is gone: closing would wait until it can be sent to."""
        self._mailbox.drop(_name(rank))

    def renew(self, rank: int) -> None:
        """Make a line to the process that has this rank now, and wait for its answer.

        Raises:
            OwnpaceError: It does not answer.
        """
        self.drop(rank)
        self._mailbox.connect(_name(rank))

    def close(self, *, now: bool = False) -> None:
        """Close all; what was sent still goes out, unless `now`."""
        self._mailbox.close(now=now)


def sent_what_no_rank_sends(rank: int, what: object) -> WireError:
    """The error for a rank that says what it cannot have to say."""
    return blamed(_name(rank), WireError(str(what)))


def _name(rank: int) -> str:
    return f"rank-{rank}"


def _rank(name: str) -> int:
    return int(name.removeprefix("rank-"))
