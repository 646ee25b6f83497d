"""Time on a GPU, where work is queued and done later: how far to run ahead of it, and how long it really took."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta

import torch
from torch import Tensor

from ownpace.engines.process.node.reporter import WallClock

# Short next to the time in which the next graph has to be queued.
_NAP_S = 0.0001
_LEAST_LEAD_S, _MOST_LEAD_S = 0.0015, 0.006
# More than it took: queueing takes longer now and then. Forgotten slowly: a sum is taken in every few micro-batches.
_RESERVE, _FORGET = 1.25, 0.9
_PATIENCE = timedelta(hours=1)


class GpuQueue:
    """How far Python runs ahead of a GPU: it queues one micro-batch while another is computed, and no more.

    If it waited for each, the GPU would idle while the next is being queued. If it never did, it would ask whether a
    sum has arrived long before the gradients for the next one are computed. So it goes on a moment before a micro-batch
    is expected to be done: at once, if it is not a graph, which takes long to queue; or as long before as queueing took
    the last times, with steps, sums and the loading of samples. On a CPU, nothing is ever queued.
    """

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self._lead = Lead() if graphs else None
        self._done_s = 0.0
        self._cuda = device.type == "cuda"
        self._device = device
        self._queued: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._known: Tensor | None = None
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def see(self, loss: Tensor, seconds: float, *, look: bool) -> float | None:
        """Note what was queued; returns the loss of what is known to be computed, or None where looking would wait."""
        if not self._cuda:
            return float(loss)
        now = time.monotonic()
        if self._lead is not None:
            self._lead.has_queued(now)
        self._done_s = max(self._done_s, now) + seconds
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._queued.append((event, loss))
        # In order: work on one stream ends as it was queued, so the first that is not done ends the search.
        while len(self._queued) > 1 and self._queued[0][0].query():
            self._known = self._queued.popleft()[1]
        if not look or self._known is None:
            return None
        known, self._known = self._known, None
        with torch.cuda.stream(self._stream):  # not behind what is queued
            return float(known)

    def catch_up(self) -> None:
        """Wait until only the latest micro-batch is left in the queue, and is almost done."""
        while len(self._queued) > 1:
            event, self._known = self._queued.popleft()
            event.synchronize()
        if self._lead is None:
            return
        while self._queued and time.monotonic() < self._done_s - self._lead.seconds:
            if self._queued[0][0].query():
                self._done_s = time.monotonic()
                self._known = self._queued.popleft()[1]
            else:
                time.sleep(_NAP_S)
        self._lead.goes_on(time.monotonic())


class Lead:
    """How long before a graph is done the next one has to be queued: as long as that takes."""

    def __init__(self) -> None:
        self.seconds = _LEAST_LEAD_S
        self._since_s: float | None = None

    def goes_on(self, now: float) -> None:
        """Python goes on to what it queues next."""
        self._since_s = now

    def has_queued(self, now: float) -> None:
        """The next graph is queued."""
        if self._since_s is not None:
            took = now - self._since_s
            # Not without an end: what took longer was a wait for others.
            self.seconds = min(_MOST_LEAD_S, max(_LEAST_LEAD_S, _RESERVE * took, _FORGET * self.seconds))
            self._since_s = None


class Queued:
    """What a GPU has been told to do so far, to be waited for as collectives are."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_completed(self) -> bool:
        """Whether it has been done."""
        return bool(self._event.query())

    def wait(self, timeout: timedelta = _PATIENCE) -> None:
        """Wait this long at most.

        Raises:
            RuntimeError: It has not been done by then.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("timed out")
            time.sleep(_NAP_S / 2)


def queued_so_far(device: torch.device) -> Queued | None:
    """What this device has still to do; None: a CPU, which has done everything."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return Queued(event)


class Stopwatch:
    """How long computing takes: by the wall clock, or by the GPU's own where work is queued on one."""

    def __init__(self, device: torch.device, clock: WallClock) -> None:
        self._clock = clock
        self._device = device
        self._cuda = device.type == "cuda"
        self._start_s = 0.0
        self._seconds_per_sample = 0.0
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque()
        self._begun: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begin."""
        if self._cuda:
            self._begun = torch.cuda.Event(enable_timing=True)
            self._begun.record(torch.cuda.current_stream(self._device))
        else:
            self._start_s = self._clock.now()

    def stop(self, samples: int) -> float:
        """Seconds since the start, for this many samples; on a GPU, at the pace of what it finished last."""
        if not self._cuda:
            return self._clock.now() - self._start_s
        assert self._begun is not None
        ended = torch.cuda.Event(enable_timing=True)
        ended.record(torch.cuda.current_stream(self._device))
        self._pairs.append((self._begun, ended, samples))
        while self._pairs and self._pairs[0][1].query():
            begun, ended, computed = self._pairs.popleft()
            self._seconds_per_sample = begun.elapsed_time(ended) / 1000 / computed
        return self._seconds_per_sample * samples
