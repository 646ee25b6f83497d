"""Messages between the nodes of a run, over ZeroMQ: from anybody, in order, encrypted, peers known by the run's key.

Every node binds one socket to receive at and connects one to each node it writes to. Both ends prove that they
know the run's key (CURVE): a listener admits only who holds the run's client key, and a sender writes only to who
holds its server key. Both are derived from one secret, which never travels on these sockets.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ownpace.core.contract.errors import InputError, MachineDied
from ownpace.engines.process.talk import shared_memory, wire

_MOST_FRAME = 16 << 20
_LINGER_MS = 5000
_WHOLE, _LYING = b"W", b"L"
"""How the tensor of a letter comes: in its frames, or lying in shared memory."""


class RunKey:
    """The secret of one run, and the key pairs that follow from it."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.server_public, self.server_secret = self._pair("server")
        self.client_public, self.client_secret = self._pair("client")

    @classmethod
    def new(cls) -> RunKey:
        """A fresh one."""
        return cls(base64.b64encode(os.urandom(32)).decode())

    def _pair(self, side: str) -> tuple[bytes, bytes]:
        secret = z85.encode(hashlib.sha256(f"ownpace {side} {self.secret}".encode()).digest())
        return zmq.curve_public(secret), secret

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with this public key may connect; ZeroMQ's authenticator asks."""
        return key == self.client_public


class Post:
    """One node's letter box, and its way to everybody else's."""

    def __init__(
        self, name: str, host: str, key: RunKey, find: Callable[[str], str], *, timeout_s: float = 30.0
    ) -> None:
        self.name = name
        self._key = key
        self._find = find
        self._timeout_s = timeout_s
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=key)
        self._box = self._context.socket(zmq.ROUTER)
        self._prepare(self._box)
        self._box.curve_server = True
        self._box.curve_publickey, self._box.curve_secretkey = key.server_public, key.server_secret
        try:
            port = self._box.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"{name} cannot listen on {host}: {error}; is that an address of this machine?") from None
        self.endpoint = f"tcp://{host}:{port}"
        self._identity = shared_memory.identity()
        self.card = f"{self.endpoint} {self._identity}".strip()
        """What others have to know to write to this node: where it listens, and which memory it can share."""
        self._lines: dict[str, zmq.Socket[bytes]] = {}
        self._outgoing: dict[str, shared_memory.Outgoing] = {}
        self._incoming = shared_memory.Incoming()

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        socket.sndhwm = socket.rcvhwm = 0  # never drop, never block: an algorithm bounds what is in flight
        socket.linger = _LINGER_MS
        socket.maxmsgsize = _MOST_FRAME
        socket.ipv6 = True

    def send(self, to: str, packet: wire.Packet) -> None:
        """Write to a node; the first letter to it opens the line, and waits for it to be there."""
        line = self._lines.get(to)
        if line is None:
            line = self._lines[to] = self._open(to)
        header, numbers, *pieces = wire.pack(packet)
        place = self._lay_down(to, pieces)
        if place is None:
            line.send_multipart([_WHOLE, header, numbers, *pieces], copy=False)
        else:
            line.send_multipart([_LYING, header, numbers, place])

    def _lay_down(self, to: str, pieces: Sequence[Any]) -> bytes | None:
        """Put a large tensor into memory that the receiver shares, if it does; returns where it lies."""
        if to not in self._outgoing or sum(len(piece) for piece in pieces) < shared_memory.SMALLEST:
            return None
        return self._outgoing[to].put(pieces)

    def receive(self, timeout_s: float | None = None) -> tuple[str, Sequence[Any]] | None:
        """The next letter: who wrote it, and its frames, which hold until this is called again. None: none came."""
        self._incoming.taken()
        if not self._box.poll(None if timeout_s is None else round(timeout_s * 1000)):
            return None
        sender, *frames = self._box.recv_multipart(copy=False)
        name = bytes(sender.buffer).decode()
        how = bytes(frames[0].buffer) if frames else b""
        if how == _LYING and len(frames) == 4:
            return name, [*frames[1:3], self._incoming.get(name, bytes(frames[3].buffer))]
        if how != _WHOLE:
            raise wire.WireError(f"{name} sent a letter of another kind; are all nodes of the same ownpace?")
        return name, frames[1:]

    def knows(self, name: str) -> bool:
        """Whether there is a line to that node already."""
        return name in self._lines

    @property
    def waiting(self) -> bool:
        """Whether a letter lies in the box."""
        return bool(int(self._box.events) & zmq.POLLIN)

    def _open(self, to: str) -> zmq.Socket[bytes]:
        endpoint, _, theirs = self._find(to).partition(" ")
        if theirs and theirs == self._identity:
            self._outgoing[to] = shared_memory.Outgoing()
        line = self._context.socket(zmq.DEALER)
        self._prepare(line)
        line.routing_id = self.name.encode()
        line.curve_serverkey = self._key.server_public
        line.curve_publickey, line.curve_secretkey = self._key.client_public, self._key.client_secret
        line.reconnect_ivl = 50
        monitor = line.get_monitor_socket()
        reached = False
        try:
            line.connect(endpoint)
            self._await_handshake(monitor, to, endpoint)
            reached = True
        finally:
            line.disable_monitor()
            monitor.close()
            if not reached:
                line.close(linger=0)
        return line

    def _await_handshake(self, monitor: zmq.Socket[bytes], to: str, endpoint: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        connected = False
        while (left := deadline - time.monotonic()) > 0:
            if not monitor.poll(max(1, round(left * 1000))):
                break
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            connected = connected or event == zmq.EVENT_CONNECTED
            refused = (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH,
                zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
                zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
            )
            if event in refused or (connected and event == zmq.EVENT_DISCONNECTED):
                raise InputError(
                    f"{to} at {endpoint} and {self.name} have different run keys; give all nodes the same OWNPACE_KEY, "
                    "or none, so that one is made for the run"
                )
        raise MachineDied(f"{self.name} cannot reach {to} at {endpoint} within {self._timeout_s:g} s; is it up?")

    def close(self, *, now: bool = False) -> None:
        """Close everything; what was sent still goes out, unless `now`."""
        linger = 0 if now else _LINGER_MS
        for line in getattr(self, "_lines", {}).values():
            line.close(linger=linger)
        for memory in getattr(self, "_outgoing", {}).values():
            memory.close()
        self._box.close(linger=linger)
        self._authenticator.stop()
        self._context.term()
