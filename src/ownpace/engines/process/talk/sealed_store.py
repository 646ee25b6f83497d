"""A store whose values only the ranks of this run can have written.

torchrun's store has no lock: whoever reaches it can write an address into it, and have a rank send its gradients there.
So each value carries a seal, made of the run's secret, its key and itself; one without the right seal is refused. What
is written can still be read by others, replaced (which ends the run) and counted wrongly: counts (`add`) and lists
(`append`) are made by the store itself, which has no secret.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from ownpace.core.contract.errors import WireError

_SEAL = 16
"""Bytes."""
_FIRST_S, _LONGEST_S = 0.001, 0.02
"""How long to wait before asking again."""
_PATIENCE_S = 300.0
"""How long to wait where nobody says: as torch's stores do."""


@dataclass
class _Keys:
    """What one process knows of a store."""

    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)


class SealedStore(Store):
    """Any store of torch's. torch itself uses this one, too, when it connects a group."""

    def __init__(
        self,
        store: Store,
        secret: str,
        scope: str = "",
        over: threading.Event | None = None,
        known: _Keys | None = None,
    ) -> None:
        """`over`: when it is set, nobody waits for keys any more. `known`: takes the keys that are written and read."""
        super().__init__()
        self._store = store
        self._secret = secret
        self._scope = scope
        self._over = over or threading.Event()
        self._known = _Keys() if known is None else known
        self._key = hashlib.sha256(f"ownpace store {secret}".encode()).digest()

    def within(self, prefix: str) -> SealedStore:
        """The part of it whose keys have this prefix. What was written elsewhere is not taken for what is here."""
        return SealedStore(PrefixStore(prefix, self._store), self._secret, f"{self._scope}{prefix}/", self._over)

    def until(self, over: threading.Event) -> SealedStore:
        """The same, whose waits end when this is set."""
        return SealedStore(self._store, self._secret, self._scope, over, self._known)

    def forget(self, *, of_others: bool = False) -> None:
        """Remove what was written here: nobody needs it any more, and it would be kept until the store ends.

        `of_others`: also what was read here, since one of those who wrote it may be dead.
        """
        keys = self._known.written | self._known.read if of_others else self._known.written
        self._known.written, self._known.read = set(), set()
        for key in keys:
            self._store.delete_key(key)

    @property
    def unsealed(self) -> Store:
        """What is underneath, for code that cannot call Python."""
        return self._store

    def _seal(self, key: str, value: bytes) -> bytes:
        whole = f"{self._scope}{key}".encode()
        # The length of the key first: no two pairs of key and value are the same bytes.
        return hmac.digest(self._key, b"%d %b%b" % (len(whole), whole, value), "sha256")[:_SEAL]

    def set(self, key: str, value: str | bytes) -> None:
        plain = value.encode() if isinstance(value, str) else bytes(value)
        self._known.written.add(key)
        self._store.set(key, self._seal(key, plain) + plain)  # type: ignore[arg-type]  # it takes bytes, too

    def get(self, key: str) -> bytes:
        if not self._store.check([key]):
            self.wait([key])
        self._known.read.add(key)
        sealed = bytes(self._store.get(key))
        seal, plain = sealed[:_SEAL], sealed[_SEAL:]
        if not hmac.compare_digest(seal, self._seal(key, plain)):
            raise WireError(f"the store holds something as {key[:80]!r} that no rank of this run wrote")
        return plain

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """Wait until all of these are there.

        Raises:
            RuntimeError: They did not come in time, or nobody wants them any more.
        """
        # Not torch's own waiting: all threads of a process have one connection, and while one of them waits on it, the
        # others cannot even ask. So one group that waits for a member that died would keep a node from all others.
        deadline = time.monotonic() + (timeout[0].total_seconds() if timeout else _PATIENCE_S)
        pause_s = _FIRST_S
        while not self._store.check(keys):
            if self._over.wait(pause_s) or time.monotonic() > deadline:
                raise RuntimeError(f"nobody has written {keys} into the store")
            pause_s = min(2 * pause_s, _LONGEST_S)

    def add(self, key: str, number: int) -> int:
        return self._store.add(key, number)

    def append(self, key: str, value: str) -> None:
        """Add to a list, which has no seal: read it with `listed`."""
        self._store.append(key, value)  # type: ignore[attr-defined]  # torch's stores have it, their types do not

    def listed(self, key: str) -> bytes:
        """What `append` has made of a list; nothing, if it has made none. Anyone may have added to it."""
        return bytes(self._store.get(key)) if self._store.check([key]) else b""  # `get` would wait for it

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)
