"""Waiting at the store that all processes share, without being deaf meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ownpace.core.contract.errors import MachineDied, PeerLost

if TYPE_CHECKING:
    from torch.distributed import Store

_FIRST_S, _LONGEST_S = 0.001, 0.02
"""How long to wait before asking again: the others are often only a moment away."""


def read_when_set(
    store: Store, key: str, whose: str, timeout_s: float, on_wait: Callable[[], None] = lambda: None
) -> bytes:
    """What another process writes there; while it has not, `on_wait` may know that it never will.

    Raises:
        MachineDied: It did not come in time.
        PeerLost: The store is gone, and with it the process that keeps it.
    """
    # Not the store's own waiting: that hears neither of signals nor of a process that died.
    deadline, pause_s = time.monotonic() + timeout_s, _FIRST_S
    try:
        while not store.check([key]):
            on_wait()
            if time.monotonic() > deadline:
                raise MachineDied(f"{whose} did not come within {timeout_s:g} s; did it start?")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        return bytes(store.get(key))
    except RuntimeError as error:
        raise store_is_gone(error) from None


def store_is_gone(error: RuntimeError) -> PeerLost:
    """What it means that the store does not answer."""
    return PeerLost(f"the store of the run does not answer, which rank 0 or torchrun keeps: {str(error)[:80]!r}")
