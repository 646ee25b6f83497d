"""Rank 0 lets ranks in that were started again while the others go on.

Such a rank writes a mark of its own into the store and waits for a roll that has it, as all ranks did at the start
(`meet.incarnation`). Rank 0 looks for such marks while ranks are gone; it offers the run's key once more, and puts the
mark into the roll. That the run is under way, the newcomer reads from a value with the run's seal.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore

from ownpace.core.contract.errors import OwnpaceError
from ownpace.engines.process.meet.incarnation import is_back, readmit, say_over
from ownpace.engines.process.meet.key_exchange import DONE, KeySettings, offered_again
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.talk.sealed_store import SealedStore

_LOOK_EVERY_S = 0.3
_UNDER_WAY = "under-way"
log = logging.getLogger(__name__)


def is_under_way(store: SealedStore) -> bool:
    """Whether the others have begun already, so that this rank comes late."""
    return store.check([_UNDER_WAY]) and store.get(_UNDER_WAY) == b"yes"


class Readmission:
    """Looks for ranks that are back, in a thread of its own."""

    def __init__(self, rendezvous: Rendezvous, world_size: int, gone: Callable[[], Collection[int]]) -> None:
        """`gone`: the ranks that the others do without."""
        self._rendezvous = rendezvous
        self._world_size = world_size
        self._gone = gone
        self._over = threading.Event()
        meeting, _, self._mark = rendezvous.prefix.rpartition("/")
        # With a connection of its own: another thread's may be waiting for an answer.
        base = TCPStore(
            rendezvous.store_host,
            rendezvous.store_port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
        )
        self._marks, self._store = PrefixStore(meeting, base), PrefixStore(rendezvous.prefix, base)
        rendezvous.open_store().set(_UNDER_WAY, "yes")
        threading.Thread(target=self._watch, name="ownpace-readmission", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more, and say so."""
        self._over.set()
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it all who could read this
            say_over(self._marks, self._mark)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for rank in sorted(self._gone()):
                # The store is gone, or a file cannot be made: the run itself does not suffer from it.
                with contextlib.suppress(RuntimeError, OSError, OwnpaceError):
                    if rank and is_back(self._marks, rank, self._world_size):
                        self._let_in(rank)

    def _let_in(self, rank: int) -> None:
        log.info("rank %s is back", rank)
        store = self._store
        done = f"{DONE}/{rank}"
        store.delete_key(done)  # of the process that had this rank before
        with offered_again(KeySettings.read(), self._rendezvous.secret, self._mark):
            readmit(self._marks, rank, self._world_size)
            deadline = time.monotonic() + self._rendezvous.timeout_s
            while not store.check([done]) and time.monotonic() < deadline and not self._over.wait(_LOOK_EVERY_S):
                pass
