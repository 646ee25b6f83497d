"""Time on a GPU, where work is queued and done later: how far to run ahead of it, and how long it really took."""

from __future__ import annotations

import time
from collections import deque

import torch
from torch import Tensor

from ownpace.engines.process.node.reporter import WallClock

# Short next to the 1.5 ms in which the next graph has to be queued.
_NAP_S = 0.0001


class GpuQueue:
    """How far Python runs ahead of a GPU: it queues one micro-batch while another is computed, and no more.

    If it waited for each, the GPU would idle while the next is being queued. If it never did, it would ask whether a
    sum has arrived long before the gradients for the next one are computed. So it goes on `lead_s` before a micro-batch
    is expected to be done: at once, if queueing takes long; a moment before, if it is a graph. On a CPU, nothing is
    ever queued.
    """

    def __init__(self, device: torch.device, lead_s: float) -> None:
        self._lead_s = lead_s
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
        self._done_s = max(self._done_s, time.monotonic()) + seconds
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
        while self._queued and time.monotonic() < self._done_s - self._lead_s:
            if self._queued[0][0].query():
                self._done_s = time.monotonic()
                self._known = self._queued.popleft()[1]
            else:
                time.sleep(_NAP_S)


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
