"""What one node knows of the run and reports: its clock, its events, its sums, and what it is told."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from ownpace.core.contract import events
from ownpace.engines.process.talk.mailbox import Post
from ownpace.engines.process.talk.wire import Packet
from ownpace.engines.roster import HUB

REPORT_EVERY_S = 0.25
_SPANS = 512


class WallClock:
    """The run's time: seconds since all nodes were ready, the same on every host."""

    def __init__(self) -> None:
        self._zero = math.inf
        self.ahead_s = 0.0
        """By how much the clock of this host is ahead of the hub's."""

    def start(self, zero_s: float) -> None:
        """Begin at this time of the hub's monotonic clock, which may lie a little ahead."""
        self._zero = zero_s + self.ahead_s

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._zero

    def sleep_until(self, then_s: float) -> float:
        """Sleep; returns by how much that was overslept."""
        while (left := then_s - self.now()) > 0:
            time.sleep(left)
        return -left


@dataclass
class Stats:
    """What one learner's updates add up to. Frozen once the budget is spent."""

    updates: int = 0
    samples: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    t: float = 0.0
    frozen: bool = False


@dataclass
class Work:
    """What a worker has computed, with the latest spans kept, so that it can be told for an earlier moment, too."""

    samples: int = 0
    compute_s: float = 0.0
    load_s: float = 0.0
    loss: float = math.nan
    """Mean loss of the latest gradient."""
    spans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SPANS))

    def add(self, start: float, end: float, samples: int) -> None:
        """One more micro-batch."""
        self.samples += samples
        self.compute_s += end - start
        self.spans.append((start, end))

    def as_dict(self, since_s: float) -> dict[str, Any]:
        """Ready for JSON, with the spans that end after `since_s`."""
        return {
            "samples": self.samples,
            "compute_s": self.compute_s,
            "load_s": self.load_s,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "spans": [span for span in self.spans if span[1] > since_s],
        }


class Books:
    """One node's line to the hub. Events and sums go out a few times a second, by whoever works here: no thread."""

    def __init__(self, post: Post, clock: WallClock, *, detail: bool) -> None:
        self.detail = detail
        self.clock = clock
        self.stats = Stats()
        self.work = Work()
        self._post = post
        self._events: list[events.Event] = []
        self._next_s = 0.0

    def event(self, event: events.Event) -> None:
        """Note one event."""
        self._events.append(event)

    def due(self, now: float) -> bool:
        """Whether it is time to report."""
        return now >= self._next_s

    def maybe_report(self, now: float) -> None:
        """Report if it is time to."""
        if self.due(now):
            self.report()

    def report(self) -> None:
        """Send what there is."""
        now = self.clock.now()
        self._next_s = now + REPORT_EVERY_S
        lines = [events.to_line(event) for event in self._events]
        self._events.clear()
        self.say("report", now=now, stats=asdict(self.stats), work=self.work.as_dict(now - 2.0), events=lines)

    def say(self, what: str, body: Tensor | None = None, **more: Any) -> None:
        """Tell the hub something about the run itself."""
        self._post.send(HUB, Packet(body=body, control={"what": what, **more}))
