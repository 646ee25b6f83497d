"""Messages between the nodes of a run, over ZeroMQ: from any node, in order, encrypted, peers known by the run's key.

Every node binds one socket to receive at and connects one to each node it sends to. Both ends prove that they know
the run's key (CURVE): a listener admits only clients that hold the run's client key, and a sender sends only to a
listener that holds its server key. Both are derived from one secret, which never travels on these sockets.

A mailbox that is told how long silence may last also notices when a node it has a line to is gone: by the connection's
end, or by heartbeats that are not answered. ZeroMQ's own thread answers them, so a node that computes for long, or
waits for Python's lock, is not silent.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import time
from collections.abc import Callable, Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from ownpace.core.contract.errors import InputError, MachineDied, WireError
from ownpace.engines.process.talk import shared_memory, wire
from ownpace.engines.process.talk.given_memory import GivenMemory
from ownpace.engines.process.talk.line import Line
from ownpace.engines.process.talk.run_key import RunKey
from ownpace.engines.process.talk.wire_header import Frame

# Far more than a piece of a tensor: a long report, as JSON, has to fit into one frame.
_MOST_FRAME = 16 << 20
# How long a socket that is closed may take to send what is still in it.
_LINGER_MS = 5000
_IN_FRAMES, _IN_MEMORY = b"W", b"L"
"""Where the tensor of a message is: in its frames, or in shared memory."""
_LONGEST_NAME = 255
"""Bytes: what ZeroMQ allows."""
_BEATS = 5
"""Heartbeats in the time that silence may last."""
_TICK_S = 0.2
"""How long a wait lasts before `on_wait` is called."""
_CONNECT_MS = 1000
_POLLIN = int(zmq.POLLIN)
"""A plain number: an enumeration's `&` makes another member of it."""
_PROBE_S = 0.2
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
)
_HUNG_UP = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED)


# Whatever a store holds is not connected to unless it looks like this.
_CONTACT = re.compile(r"(tcp://[0-9A-Za-z.:\[\]%_-]{1,200}:[0-9]{1,5})(?: ([0-9a-f]{16}))?", re.ASCII)
log = logging.getLogger(__name__)


class Mailbox:
    """Where one node's messages arrive, and its lines to all other nodes."""

    def __init__(
        self,
        name: str,
        host: str,
        key: RunKey,
        find: Callable[[str], str],
        *,
        timeout_s: float = 30.0,
        silence_s: float | None = None,
        on_wait: Callable[[], None] = lambda: None,
        hears: Callable[[str], bool] = lambda name: True,
    ) -> None:
        if len(name.encode()) > _LONGEST_NAME:
            raise InputError(f"the name {name[:40]}… has {len(name.encode())} bytes; use at most {_LONGEST_NAME}")
        self.name = name
        self._key, self._find = key, find
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._on_wait = on_wait
        self._hears = hears
        self.waits = True
        """Whether the first message to a node waits until that answers: a key that does not fit is then noticed. Not
        while nodes come and go: one that has just died never answers, and nothing may wait for it."""
        self.unheard = 0
        """Messages that came from others than those who are heard, and were thrown away unread."""
        self._lines: dict[str, Line] = {}
        self._given: dict[str, list[GivenMemory]] = {}
        """What each node is given, and has not taken yet."""
        # The authenticator before the socket: one bound without it would admit any client for a moment.
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=key)
        self._box = self._new_box()
        try:
            port = self._box.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"{name} cannot listen on {host}: {error}; is that an address of this machine?") from None
        self._identity = shared_memory.identity()
        self.contact = f"tcp://{host}:{port} {self._identity}".strip()
        """What others must know to send to this node: where it listens, and which memory it can open."""
        self._incoming = shared_memory.Incoming()

    def _new_box(self) -> zmq.Socket[bytes]:
        box = self._new_socket(zmq.ROUTER)
        box.curve_server = True
        # A node that comes back after its connection was cut is heard, even if the old one is not known to be gone.
        box.router_handover = True
        box.curve_publickey, box.curve_secretkey = self._key.server_public, self._key.server_secret
        return box

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.sndhwm = made.rcvhwm = 0  # never drop, never block: an algorithm bounds what is in flight
        made.linger = _LINGER_MS
        made.maxmsgsize = _MOST_FRAME
        made.ipv6 = True
        if self._silence_s is not None:
            # At both ends: each has to notice the silence of the other. A silence begins up to one beat before the
            # first one that is not answered: together they last as long as is allowed.
            beat_ms = round(1000 * self._silence_s / _BEATS)
            made.heartbeat_ivl, made.heartbeat_timeout = beat_ms, (_BEATS - 1) * beat_ms
        return made

    def send(self, to: str, packet: wire.Packet) -> None:
        """Send to a node; the first message to it opens the line."""
        line = self._lines.get(to)
        if line is None:
            line = self._lines[to] = self._open(to)
        header, numbers, *pieces = wire.pack(packet)
        place = None
        if line.memory is not None and sum(len(piece) for piece in pieces) >= shared_memory.SMALLEST:
            place = line.memory.put([memoryview(piece) for piece in pieces])
        if place is None:
            # Not copied: what was packed never changes again, since only snapshots are sent.
            line.socket.send_multipart([_IN_FRAMES, header, numbers, *pieces], copy=False)
        else:
            line.socket.send_multipart([_IN_MEMORY, header, numbers, place])

    def shares_memory(self, to: str) -> bool:
        """Whether a node can open memory of this process; opens the line to it, if there is none."""
        if to not in self._lines:
            self.connect(to)
        return self._lines[to].memory is not None

    def keep(self, memory: GivenMemory, to: str) -> None:
        """Keep memory that is given to a node until it has taken it, or is gone."""
        self._given.setdefault(to, []).append(memory)

    def keeps_for(self, to: str) -> bool:
        """Whether a node has still to take memory that is given to it."""
        self._let_go()
        return to in self._given

    def _let_go(self) -> None:
        """Let go of memory that has been taken."""
        for name, given in list(self._given.items()):
            for memory in [memory for memory in given if memory.is_taken]:
                memory.close()
                given.remove(memory)
            if not given:
                del self._given[name]

    def receive(self, timeout_s: float | None = None) -> tuple[str, Sequence[Frame]] | None:
        """The next message: its sender, and its frames, which hold until this is called again. None: none came."""
        # What the last message pointed to has been read by now: its memory may be written again.
        self._incoming.taken()
        if self._given:
            self._let_go()
        while self._box.poll(None if timeout_s is None else round(timeout_s * 1000)):
            sender, *frames = self._box.recv_multipart(copy=False)
            # Before anything of it is read: who has the key, but no place in the run, gets nothing done.
            name = bytes(sender.buffer).decode(errors="replace")
            if self._hears(name):
                return name, self._read(name, frames)
            self._count_unheard(name)
            timeout_s = 0.0
        return None

    def _read(self, name: str, frames: Sequence[Frame]) -> Sequence[Frame]:
        where = bytes(frames[0].buffer) if frames and len(frames[0].buffer) == 1 else b""
        if where == _IN_MEMORY and len(frames) == 4:
            return [*frames[1:3], self._incoming.get(name, bytes(frames[3].buffer))]
        if where != _IN_FRAMES:
            raise wire.blamed(name, WireError("a message of another kind; do all nodes run the same ownpace?"))
        return frames[1:]

    def _count_unheard(self, name: str) -> None:
        if not self.unheard:
            log.warning("%s does not hear %r, which is not of this run, nor others like it", self.name, name[:80])
        self.unheard += 1

    def knows(self, name: str) -> bool:
        """Whether there is a line to that node already."""
        return name in self._lines

    def lost(self) -> list[str]:
        """The nodes whose lines have ended since the last time; none, if no silence was given."""
        return [name for name, line in self._lines.items() if line.has_ended()]

    def is_up(self, name: str) -> bool:
        """Whether a node answers, as far as `lost` has seen; one that nothing was sent to yet may."""
        return name not in self._lines or self._lines[name].is_up

    def is_refused(self, name: str) -> bool:
        """Whether nobody listens any more where a node did; False: somebody does, or its host cannot be reached."""
        host, _, port = self._lines[name].endpoint.removeprefix("tcp://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def connect(self, to: str) -> None:
        """Open the line to a node before there is anything to send."""
        self._lines[to] = self._open(to)

    def drop(self, name: str) -> None:
        """Forget the line to a node that is gone, if there is one, and what was still to be sent on it."""
        line = self._lines.pop(name, None)
        if line is not None:
            line.close(0)
        for memory in self._given.pop(name, ()):
            memory.close()

    @property
    def waiting(self) -> bool:
        """Whether a message has arrived."""
        return bool(int(self._box.get(zmq.EVENTS)) & _POLLIN)  # an attribute would be looked for in vain first

    def _open(self, to: str) -> Line:
        endpoint, identity = self._contact_of(to)
        socket = self._new_socket(zmq.DEALER)
        # Before connecting: otherwise the handshake could be over before anything listens for its events.
        monitor = socket.get_monitor_socket()
        reached = False
        try:
            # How the receiver knows its sender; set before connecting, or it has no effect.
            socket.routing_id = self.name.encode()
            socket.curve_serverkey = self._key.server_public
            socket.curve_publickey, socket.curve_secretkey = self._key.client_public, self._key.client_secret
            socket.reconnect_ivl = 50
            # Otherwise the system tries at ever longer intervals, and a host that is back is found late.
            socket.connect_timeout = _CONNECT_MS
            socket.connect(endpoint)
            if self.waits:
                self._await_handshake(monitor, to, endpoint)
            reached = True
        finally:
            if not reached or self._silence_s is None:
                socket.disable_monitor()
                monitor.close()
            if not reached:
                socket.close(linger=0)  # an open socket would keep the context from ending
        shares_memory = bool(identity) and identity == self._identity
        memory = shared_memory.Outgoing() if shares_memory else None
        if self._silence_s is None:
            return Line(socket, endpoint, memory, None)
        late_s = math.inf if self.waits else time.monotonic() + self._silence_s
        return Line(socket, endpoint, memory, monitor, is_up=self.waits, late_s=late_s)

    def _contact_of(self, to: str) -> tuple[str, str]:
        found = self._find(to)
        read = _CONTACT.fullmatch(found)
        if read is None:
            raise WireError(f"{found[:80]!r} is not where {to} can listen; nobody of this run wrote that")
        return read[1], read[2] or ""

    def _await_handshake(self, monitor: zmq.Socket[bytes], to: str, endpoint: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        connected = 0
        while (left := deadline - time.monotonic()) > 0:
            if not monitor.poll(max(1, round(min(left, _TICK_S) * 1000))):
                self._on_wait()
                continue
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            connected += event == zmq.EVENT_CONNECTED
            # With a wrong server key, the other side hangs up without a word, and does so again. One that has died does
            # it once, and then nobody listens there.
            if event in _REFUSED or (connected > 1 and event in _HUNG_UP):
                raise InputError(
                    f"{to} at {endpoint} and {self.name} have different run keys; give all nodes the same OWNPACE_KEY, "
                    "or none, so that one is made for the run"
                )
        raise MachineDied(f"{self.name} cannot reach {to} at {endpoint} within {self._timeout_s:g} s; is it up?")

    def close(self, *, now: bool = False) -> None:
        """Close everything; what was sent still goes out, unless `now`."""
        linger_ms = 0 if now else _LINGER_MS
        for line in self._lines.values():
            line.close(linger_ms)
        for memory in (memory for given in self._given.values() for memory in given):
            memory.close()
        self._box.close(linger=linger_ms)
        self._authenticator.stop()
        self._context.term()  # last: it waits for every socket above
