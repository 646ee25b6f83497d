"""The secret of a run, and the keys of its sockets that follow from it."""

from __future__ import annotations

import base64
import hashlib
import os

import zmq
from zmq.utils import z85


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
