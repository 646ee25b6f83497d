"""Asking the store: in ticks, so that what has gone wrong elsewhere is heard meanwhile."""

from __future__ import annotations

import threading

import pytest

from ownpace.core.contract.errors import MachineDied, PeerLost
from ownpace.engines.process.meet.rendezvous import local_store
from ownpace.engines.process.talk.sealed_store import SealedStore
from ownpace.engines.process.talk.store import WatchedStore, read_when_set


class Silent:
    """A store whose host has fallen silent."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def add(self, key: str, number: int) -> int:
        self.over.wait()
        raise RuntimeError("Connection reset by peer\nand many more lines")


def alarm() -> None:
    raise MachineDied("rank 0 is gone")


def test_a_watched_store_answers_as_the_store_does():
    plain, _ = local_store()
    watched = WatchedStore(SealedStore(plain, "secret"), alarm)
    watched.set("a", "bc")
    assert watched.get("a") == b"bc"
    assert watched.listed("list") == b""
    watched.append("list", "b")
    watched.append("list", "c")
    assert watched.listed("list") == b"bc"
    assert watched.check(["a"])
    assert watched.add("count", 3) == 3
    assert watched.delete_key("a")
    assert not watched.check(["a"])
    watched.close()


def test_who_asks_a_silent_store_hears_what_has_gone_wrong():
    silent = Silent()
    watched = WatchedStore(silent, alarm)  # type: ignore[arg-type]  # it can do nothing else
    with pytest.raises(MachineDied, match="rank 0 is gone"):
        watched.add("count", 1)
    silent.over.set()
    with pytest.raises(PeerLost, match=r"is gone: Connection reset by peer$"):
        WatchedStore(silent, lambda: None).add("count", 1)  # type: ignore[arg-type]


def test_what_is_not_written_is_waited_for_until_something_is_known():
    store, _ = local_store()
    with pytest.raises(MachineDied, match="rank 0 is gone"):
        read_when_set(store, "key", "rank 1", 60, alarm)
    with pytest.raises(MachineDied, match=r"rank 1 did not come within 0\.05 s"):
        read_when_set(store, "key", "rank 1", 0.05)
    threading.Timer(0.1, lambda: store.set("key", "value")).start()
    assert read_when_set(store, "key", "rank 1", 60) == b"value"
