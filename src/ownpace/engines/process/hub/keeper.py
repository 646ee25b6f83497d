"""Runs the hub until the run is over: well, interrupted, or failed."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time

from ownpace.core.contract.errors import Interrupted, MachineDied, NodeFailed, OwnpaceError, ReplicasDiffer
from ownpace.engines.process.hub.hub import Hub
from ownpace.engines.process.meet.interrupts import PATIENCE_S
from ownpace.engines.process.meet.supervisor import Supervisor
from ownpace.engines.process.node.context import Orders

GOODBYE_S = 10.0
"""How long nodes may take to end after a run that went well."""
_LOOK_EVERY_S = 0.05
log = logging.getLogger(__name__)


class HubKeeper:
    """Leads the hub through the run, here or in a thread of its own."""

    def __init__(self, hub: Hub, orders: Orders, supervisor: Supervisor) -> None:
        self.error: OwnpaceError | None = None
        """Why the run has failed."""
        self.hub = hub
        self._orders = orders
        self._supervisor = supervisor
        self._thread: threading.Thread | None = None
        self._closing = False
        self._deadline_s = math.inf

    def start(self) -> None:
        """Run in a thread."""
        self._thread = threading.Thread(target=self.run, name="ownpace-hub", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Run here."""
        try:
            self._run()
        except BaseException as error:  # a full disk, an event handler of the user's
            known = (
                error if isinstance(error, OwnpaceError) else NodeFailed(f"the hub: {type(error).__name__}: {error}")
            )
            self.error = self.error or known
            # The alarm first: this process's own node must end even if nothing can be written or sent any more.
            self._orders.alarms.append(self.error)
            with contextlib.suppress(Exception):
                self.hub.finish(self.error)
            with contextlib.suppress(Exception):
                self.hub.give_up(self.error)
            if known is not error:
                raise

    def _run(self) -> None:
        hub = self.hub
        hub.begin()
        heard = 0
        # Messages before deaths: a node that failed says why before it exits, and its words are in the mailbox by then.
        while not hub.is_done and hub.complaints.verdict is None and not self._closing:
            hub.look(_LOOK_EVERY_S)
            for death in self._supervisor.deaths(self.samples):
                hub.membership.lose(death)
            # What the presence of ranks has found; each once.
            for alarm in self._orders.alarms[heard:]:
                hub.complaints.add(alarm)
                heard += 1
            # Where ranks have lines of their own, each hears of some deaths first; who is gone for one is so for both.
            if self._orders.goes_on:
                hub.membership.lose_ranks(self._orders.gone)
                self._orders.gone |= hub.membership.newly_lost()
            if self._orders.stops or hub.membership.departures.ends_run:
                self._interrupt()
        self.error = self._verdict()
        log.info("the run ends: %s", self.error or "finished")
        # The last record before the last message: a node that hears Goodbye may read the files.
        hub.finish(self.error)
        # Not even if all have ended: that replicas differ is for every rank to raise.
        if hub.is_done and not isinstance(self.error, ReplicasDiffer):
            hub.say_goodbye()
        elif self.error is not None:
            # Nodes first: this process's own may be waiting for one that only ends when it is told.
            hub.give_up(self.error)
            self._orders.alarms.append(self.error)

    @property
    def samples(self) -> int:
        """Of all updates so far, as far as known."""
        return self.hub.journal.totals.samples

    def _interrupt(self) -> None:
        """Ctrl-C: end in order; if that takes too long, or if asked twice, end at once."""
        now = time.monotonic()
        self._deadline_s = min(self._deadline_s, now + PATIENCE_S)
        if len(self._orders.stops) > 1 or now > self._deadline_s or not self.hub.has_started:
            self.hub.complaints.add(self._interrupted())
        else:
            self.hub.stop(with_checkpoint=True)

    def _interrupted(self) -> Interrupted:
        when = f"at sample {self.samples}" if self.hub.has_started else "before the start"
        by = self.hub.membership.departures.ends_run
        who = f" ({by})" if by and not self._orders.stops else ""
        return Interrupted(f"interrupted {when}{who}; everything up to then has been written")

    def _verdict(self) -> OwnpaceError | None:
        failed = self.hub.complaints.verdict
        if failed is not None:
            return failed
        if not self.hub.is_done:
            return self.hub.complaints.best or MachineDied("rank 0 ended before the run did")
        return self._interrupted() if self._orders.stops or self.hub.membership.departures.ends_run else None

    def end(self, error: OwnpaceError | None) -> OwnpaceError | None:
        """Wait for the thread; `error` is why the node next to it failed."""
        assert self._thread is not None
        # The node next to the hub needs no message to tell it what happened.
        if error is not None:
            self.hub.complaints.add(error)
        self._thread.join(GOODBYE_S)  # it may still be evaluating, or waiting for a better explanation
        self._closing = True
        self._thread.join(GOODBYE_S)
        return self.error or error
