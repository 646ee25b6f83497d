"""One node's connection to the others: the store, its mailbox, the run's clock."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from ownpace.core.contract.errors import InputError, OwnpaceError
from ownpace.core.contract.values import Address
from ownpace.engines.process.meet.rendezvous import Rendezvous
from ownpace.engines.process.node.context import NodeContext, Orders
from ownpace.engines.process.node.nodes import ProcessNode
from ownpace.engines.process.node.reporter import HUB, Reporter, WallClock
from ownpace.engines.process.node.rounding import rounding_digest
from ownpace.engines.process.node.terms import RunTerms
from ownpace.engines.process.talk.channels import Wiring
from ownpace.engines.process.talk.control import (
    ClockAnswer,
    ClockRequest,
    Failed,
    Hello,
    Prepared,
    Refuse,
    Start,
    Welcome,
)
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import read_when_set
from ownpace.engines.process.talk.wire import Packet
from ownpace.engines.roster import Roster

_CLOCK_TRIES = 8
log = logging.getLogger(__name__)


class Connection:
    """What one node needs to be reached and to reach the others."""

    def __init__(
        self,
        name: str,
        rendezvous: Rendezvous,
        store: SealedStore | None = None,
        *,
        on_wait: Callable[[], None] = lambda: None,
        silence_s: float | None = None,
        hears: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`silence_s`: how long those that this node sends to may not answer before they are gone; None: for ever."""
        self.name = name
        self.rendezvous = rendezvous
        self.store = rendezvous.open_store() if store is None else store
        self.mailbox = Mailbox(
            name,
            rendezvous.host,
            rendezvous.key,
            self._find,
            timeout_s=rendezvous.timeout_s,
            silence_s=silence_s,
            on_wait=on_wait,
            hears=hears,
        )
        self.clock = WallClock()
        self._reporter: Reporter | None = None
        self._stores: dict[int, SealedStore] = {}
        self._on_wait = on_wait
        self._has_complained = False
        # Last: as soon as the others can find this node, they send to it.
        self.store.set(f"node/{name}", self.mailbox.contact)
        log.info("%s listens at %s", name, self.mailbox.contact)

    def _find(self, name: str) -> str:
        """Where a node listens, once it does; while it does not, `on_wait` may know that it never will."""
        found = read_when_set(self.store, f"node/{name}", name, self.rendezvous.timeout_s, self._on_wait)
        return found.decode(errors="replace")  # the mailbox checks it

    def context(
        self,
        terms: RunTerms,
        roster: Roster,
        address: Address,
        like: Tensor,
        orders: Orders,
        *,
        is_evaluated: bool,
        generation: int = 0,
        on_wait: Callable[[], None] | None = None,
    ) -> NodeContext:
        """What a node here is given to work with in one generation."""
        if self._reporter is None:  # one for all generations: sums go on
            self._reporter = Reporter(self.name, self.mailbox, self.clock, detail=terms.detail)
        return NodeContext(
            address=address,
            roster=roster,
            terms=terms,
            layout=terms.layout,
            like=like,
            mailbox=self.mailbox,
            wiring=Wiring(
                self.store_of(generation),
                self.rendezvous.backend,
                self.rendezvous.host,
                self.rendezvous.timeout_s,
                on_wait or self._on_wait,
                terms.direct_bytes,
            ),
            clock=self.clock,
            reporter=self._reporter,
            orders=orders,
            is_evaluated=is_evaluated,
            generation=generation,
        )

    def store_of(self, generation: int) -> SealedStore:
        """The store with keys of this generation alone: addresses of an earlier one lead to nobody."""
        if generation not in self._stores:
            self._stores[generation] = self.store.within(f"generation/{generation}")
        return self._stores[generation]

    def leave(self, generation: int, *, someone_died: bool) -> None:
        """All have left this generation: remove what the store has of it."""
        self.store_of(generation).forget(of_others=someone_died)
        del self._stores[generation]

    def introduce(self, node: ProcessNode, fingerprint: dict[str, str]) -> bool:
        """Show the hub what this worker is about to train, and wait for its consent.

        Returns:
            Whether the others train already, so that this worker joins at the next border.

        Raises:
            InputError: The others train something else.
        """
        # Before any collective: workers with different models would hang in one.
        node.context.reporter.say(Hello(fingerprint, rounding_digest(node.context.like.device)))
        answer, _ = node.inbox.wait_for(Welcome, Refuse)
        if isinstance(answer, Refuse):
            raise InputError(answer.message)
        assert isinstance(answer, Welcome)
        node.hear_rounding(unlike=answer.round_unlike)
        return answer.is_late

    def start_together(self, node: ProcessNode, *, is_new: bool = True, checksums: Sequence[int] = ()) -> None:
        """Say that this node is prepared, and wait until all are; `is_new`: it has been in no generation before."""
        # Clocks first: time zero is announced as soon as the last node is prepared.
        if is_new and self.rendezvous.spans_hosts:
            self._set_clock(node)
        node.context.reporter.say(Prepared(node.context.generation, list(checksums)))
        start, _ = node.inbox.wait_for(Start)
        while start.generation != node.context.generation:  # of an attempt that came to nothing
            start, _ = node.inbox.wait_for(Start)
        self.clock.start(start.zero_s)
        self.mailbox.waits = False  # from now on nodes come and go
        log.info("%s starts generation %s", self.name, node.context.generation)
        self.clock.sleep_until(0.0)

    def _set_clock(self, node: ProcessNode) -> None:
        """Find by how much this host's clock is ahead of the hub's: the quickest answer knows best."""
        best = math.inf
        for _ in range(_CLOCK_TRIES):
            asked = time.monotonic()
            node.context.reporter.say(ClockRequest())
            answer, _ = node.inbox.wait_for(ClockAnswer)
            took = time.monotonic() - asked
            if took < best:
                # Half of the way there and back: the best guess at when the hub read its clock.
                best, self.clock.ahead_s = took, asked + took / 2 - answer.now_s

    @contextmanager
    def complaining(self) -> Iterator[None]:
        """Tell the hub of a failure at once. Enter this last, so that it is left first.

        Leaving a group waits for sums in flight, and so for peers that may never come: the hub has to know by then.
        """
        try:
            yield
        except BaseException as error:
            self.complain(error)
            raise

    def complain(self, error: BaseException) -> None:
        """Tell the hub that this node failed, and why; once."""
        if self._has_complained:
            return
        self._has_complained = True
        log.info("%s failed: %s: %s", self.name, type(error).__name__, error)
        self.mailbox.send(HUB, Packet(control=Failed.of(self.name, error)))
        if isinstance(error, OwnpaceError) and not isinstance(error, InputError):  # every rank reports a refusal
            error.told = True
