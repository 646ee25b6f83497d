"""Which meeting this is: ranks that are started again must not take what the dead ones left in the store for theirs.

torchrun restarts all ranks on one store, and counts restarts on each host separately, so no number that ranks are given
tells one start of the run from another on all of them. They agree on a mark instead:

    rank n     writes a mark of its own, drawn at random                               here/n = mark n
    rank 0     writes all marks that it finds, again whenever one has changed           roll = mark 0, mark 1, …
    rank n     waits for a roll with its own mark in its place: rank 0 has seen it, now
               says so, where only ranks of this start look                             mark 0/seen/n = mark n

The mark of rank 0 is the name of this start: everything else that ranks write lies under it. A roll that dead ranks
left holds other marks, so nobody takes it for the one of now; rank 0 is done when every rank has answered to its mark.
When the ranks leave their fleet, it writes that down, too: one that is started again later need not wait for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from ownpace.core.contract.errors import InputError, MachineDied
from ownpace.engines.process.talk.store import KeyValues, read_when_set, store_is_gone

_MARK = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NONE = "-"
_OVER = "over"
_ASK_EVERY_S = 0.01


def new_mark() -> str:
    """One that nobody has drawn before."""
    return os.urandom(16).hex()


def agree_on_mark(
    store: KeyValues, rank: int, world_size: int, mine: str, timeout_s: float, *, lives_as_long_as_rank_0: bool = False
) -> str:
    """The mark of this start of the run, the same on all ranks.

    Args:
        store: What all ranks can reach.
        rank: This one's.
        world_size: How many there are.
        mine: What this one has drawn.
        timeout_s: How long to wait for the others.
        lives_as_long_as_rank_0: Whether the store ends with the process of rank 0: what that has left is then what it
            has left, and not what one before it has, in whose place all ranks were started again.

    Raises:
        InputError: The others have left this fleet.
        MachineDied: Not all ranks came in time.
        PeerLost: The store is gone.
    """
    deadline = time.monotonic() + timeout_s
    try:
        store.set(f"here/{rank}", mine)
        if rank:
            own = lives_as_long_as_rank_0
            return _find_myself(store, rank, world_size, mine, deadline, timeout_s, lives_as_long_as_rank_0=own)
        roll: list[str] = []
        while True:
            found = [mine, *(_read(store, f"here/{other}") for other in range(1, world_size))]
            if found != roll:
                roll = found
                store.set("roll", " ".join(roll))
            if all(_read(store, f"{mine}/seen/{other}") == roll[other] != _NONE for other in range(1, world_size)):
                return mine
            _wait(deadline, world_size, timeout_s)
    except RuntimeError as error:
        raise store_is_gone(error) from None


def _find_myself(
    store: KeyValues,
    rank: int,
    world_size: int,
    mine: str,
    deadline: float,
    timeout_s: float,
    *,
    lives_as_long_as_rank_0: bool,
) -> str:
    while True:
        roll = _read_roll(store, world_size)
        if roll and roll[rank] == mine:
            store.set(f"{roll[0]}/seen/{rank}", mine)
            return roll[0]
        if roll and lives_as_long_as_rank_0 and _read(store, _OVER) == roll[0]:
            raise InputError(
                f"rank {rank} was started again, but the others have left the fleet that it asks for: a rank that is "
                "started again takes its place in the first ownpace.join of its script; start all ranks again"
            )
        _wait(deadline, world_size, timeout_s)


def _read_roll(store: KeyValues, world_size: int) -> Sequence[str]:
    """The marks of all ranks; none, if there is no roll, or one of another number of ranks."""
    if not store.check(["roll"]):  # `get` would wait for it
        return ()
    marks = bytes(store.get("roll")).decode("ascii", "replace").split(" ")
    return marks if len(marks) == world_size and _MARK.fullmatch(marks[0]) else ()


def _read(store: KeyValues, key: str) -> str:
    """A mark that a rank wrote; what is no mark does not count."""
    if not store.check([key]):
        return _NONE
    mark = bytes(store.get(key)).decode("ascii", "replace")
    return mark if _MARK.fullmatch(mark) else _NONE


def is_back(store: KeyValues, rank: int, world_size: int) -> bool:
    """On rank 0, after all have met: whether a rank was started again, and waits to be let in."""
    roll = _read_roll(store, world_size)
    return bool(roll) and _read(store, f"here/{rank}") not in (_NONE, roll[rank])


def readmit(store: KeyValues, rank: int, world_size: int) -> None:
    """Let it in: it finds itself in the roll, and the mark of this start."""
    roll = list(_read_roll(store, world_size))
    roll[rank] = _read(store, f"here/{rank}")
    store.set("roll", " ".join(roll))


def say_over(store: KeyValues, mark: str) -> None:
    """On rank 0: the ranks of this start have left their fleet, and nobody can come to it any more."""
    store.set(_OVER, mark)


def _wait(deadline: float, world_size: int, timeout_s: float) -> None:
    if time.monotonic() > deadline:
        raise incomplete(world_size, timeout_s)
    time.sleep(_ASK_EVERY_S)


def incomplete(world_size: int, timeout_s: float) -> MachineDied:
    """The error for ranks that did not come."""
    return MachineDied(f"not all {world_size} ranks joined within {timeout_s:g} s; did all of them start?")


def say_to_all(store: KeyValues, topic: str, rank: int, world_size: int, said: str, timeout_s: float) -> list[str]:
    """What every rank says about something, in the order of ranks, once all have said it."""
    store.set(f"{topic}/{rank}", said)
    return [
        read_when_set(store, f"{topic}/{other}", f"rank {other}", timeout_s).decode("ascii", "replace")
        for other in range(world_size)
    ]
