"""One node's clock, and what it reports to the hub: events, totals, snapshots."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace

from torch import Tensor

from ownpace.core.contract import events
from ownpace.engines.ledger import UpdateTotals
from ownpace.engines.process.talk.control import Control, Report, WorkDone
from ownpace.engines.process.talk.mailbox import Mailbox
from ownpace.engines.process.talk.wire import Packet

HUB = "hub"
"""The hub's name, as a receiver of messages."""
REPORT_EVERY_S = 0.25
_SPANS = 512
"""Of a report: the latest computations."""
_SHORT_S = 2e-5
"""Shorter waits are not recorded."""


class WallClock:
    """The run's time: seconds since all nodes were prepared, the same on every host."""

    def __init__(self) -> None:
        self._zero_s = math.inf
        self.ahead_s = 0.0
        """By how much the clock of this host is ahead of the hub's."""

    def start(self, zero_s: float) -> None:
        """Begin at this time of the hub's monotonic clock, which may be a little in the future."""
        self._zero_s = zero_s + self.ahead_s

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._zero_s

    def sleep_until(self, then_s: float) -> float:
        """Sleep; returns by how much that was overslept."""
        while (left := then_s - self.now()) > 0:
            time.sleep(left)
        return -left


class Reporter:
    """What one node reports to the hub. Events and totals go out several times a second, between other work; there is
    no thread for it.
    """

    def __init__(self, name: str, mailbox: Mailbox, clock: WallClock, *, detail: bool) -> None:
        self.name = name
        self.detail = detail
        self.clock = clock
        self.totals = UpdateTotals()
        """Of this node's updates."""
        self.work = WorkDone()
        """Of this node's computing; its spans are kept apart."""
        self.waited_s = 0.0
        """For sums, so far."""
        self._spans: deque[list[float]] = deque(maxlen=_SPANS)
        self._mailbox = mailbox
        self._events: list[events.Event] = []
        self._next_s = 0.0

    def event(self, event: events.Event) -> None:
        """Note one event."""
        self._events.append(event)

    def computed(self, start: float, end: float, samples: int, version: int) -> None:
        """Note one more micro-batch, at parameters of this version."""
        self.work.samples += samples
        self.work.compute_s += end - start
        self._spans.append([start, end])
        if self.detail:
            self.event(events.Compute(start, end, self.name, samples, version))

    def loaded(self, start: float, end: float, samples: int) -> None:
        """Note that samples were loaded."""
        self.work.load_s += end - start
        if self.detail and end > start:
            self.event(events.Load(start, end, self.name, samples))

    def saw_loss(self, loss: float) -> None:
        """Note the mean loss of the latest gradient."""
        self.work.loss = loss if math.isfinite(loss) else None

    def waited(self, what: str, start: float) -> None:
        """Note that this node had nothing to do since `start`."""
        now = self.clock.now()
        if what == "all-reduce":
            self.waited_s += now - start
        if self.detail and now - start > _SHORT_S:
            self.event(events.Wait(start, now, self.name, what))
        self.maybe_report(now)

    def due(self, now: float) -> bool:
        """Whether it is time to report."""
        return now >= self._next_s

    def maybe_report(self, now: float) -> None:
        """Report if it is time to."""
        if now >= self._next_s:
            self.report()

    def report(self) -> None:
        """Send the events since the last report, and the totals."""
        now = max(0.0, self.clock.now())  # a server that is started again may report before it is told the time
        self._next_s = now + REPORT_EVERY_S
        lines = [events.to_line(event) for event in self._events]
        self._events.clear()
        spans = [*self._spans]
        self._spans.clear()
        self.say(Report(now, self.totals, replace(self.work, spans=spans), lines))

    def say(self, control: Control, body: Tensor | None = None) -> None:
        """Tell the hub something about the run itself."""
        self._mailbox.send(HUB, Packet(body=body, control=control))
