"""The way to one other node: a socket, memory that both share, and whether the other end is there."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from ownpace.engines.process.talk import shared_memory


@dataclass
class Line:
    """The way to one other node."""

    socket: zmq.Socket[bytes]
    endpoint: str
    memory: shared_memory.Outgoing | None
    """For large tensors, where both can open the same memory."""
    monitor: zmq.Socket[bytes] | None
    """Tells when the connection ends, where that is watched."""
    is_up: bool = True
    """Whether the other end answers, as far as `has_ended` has seen."""
    late_s: float = math.inf
    """When a connection that nobody waited for counts as ended, if it has not been made by then."""

    def has_ended(self) -> bool:
        """Whether the connection has ended since the last time; only where it is watched."""
        ended = time.monotonic() > self.late_s
        while self.monitor is not None and self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                ended, self.is_up = True, False
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_up = True
            else:
                continue
            self.late_s = math.inf
        if ended:
            self.late_s = math.inf  # said once
        return ended

    def close(self, linger_ms: int) -> None:
        """Close it; what is still to be sent has so long to go out."""
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close()
        self.socket.close(linger=linger_ms)
        if self.memory is not None:
            self.memory.close()
