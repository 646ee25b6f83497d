"""Ranks that are threads of one process: they go on together, and hear of one that does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ownpace.core.contract.errors import InputError, MachineDied, NodeFailed, PeerLost, WireError
from ownpace.engines.process.meet.environment import Environment
from ownpace.engines.process.meet.rendezvous import LOOPBACK, Rendezvous, local_store
from ownpace.engines.process.presence.presence import Presence
from ownpace.engines.process.talk.control import GiveUp, Refuse
from ownpace.engines.process.talk.rank_control import Agreed, Together
from ownpace.engines.process.talk.run_key import RunKey

PATIENCE_S = 120.0


class Ranks:
    """Each in a thread of its own, as each is a process of its own otherwise."""

    def __init__(self, number: int) -> None:
        self._store, port = local_store()
        rendezvous = Rendezvous(LOOPBACK, port, "", RunKey.new().secret, LOOPBACK, "gloo", PATIENCE_S)
        self._executors = [ThreadPoolExecutor(1) for _ in range(number)]

        def join(rank: int) -> Presence:
            return Presence(Environment(rank, number, rank, number, 0, 1), rendezvous.open_store(), rendezvous)

        joined = [executor.submit(join, rank) for rank, executor in enumerate(self._executors)]
        self.ranks = [each.result(PATIENCE_S) for each in joined]

    def do(self, rank: int, function: Callable[[Presence], Any]) -> Future[Any]:
        return self._executors[rank].submit(function, self.ranks[rank])

    def close(self) -> None:
        for future in [self.do(rank, Presence.close) for rank in range(len(self.ranks))]:
            future.result(PATIENCE_S)
        for executor in self._executors:
            executor.shutdown()


@pytest.fixture
def three() -> Iterator[Ranks]:
    ranks = Ranks(3)
    yield ranks
    ranks.close()


def begin(fingerprint: dict[str, str]) -> Callable[[Presence], bool]:
    return lambda rank: rank.begin_loop(fingerprint)


def test_ranks_go_on_when_the_last_has_come(three):
    first = [three.do(rank, begin({"epochs": "1"})) for rank in (0, 1)]
    assert not any(future.done() for future in first)
    last = three.do(2, begin({"epochs": "1"}))
    for future in [*first, last]:
        future.result(PATIENCE_S)
    for future in [three.do(rank, Presence.leave) for rank in range(3)]:
        future.result(PATIENCE_S)


def test_a_rank_that_does_something_else_is_named_on_all(three):
    acts = [three.do(0, begin({})), three.do(1, Presence.leave)]
    message = "rank 1 left after 0 loops over fleet.batches, rank 0 began its first loop"
    for future in acts:
        with pytest.raises(InputError, match=message):
            future.result(PATIENCE_S)
    with pytest.raises(InputError, match=message):
        three.do(2, begin({})).result(PATIENCE_S)


def test_the_reason_why_a_rank_failed_is_told_to_all(three):
    waiting = [three.do(rank, begin({})) for rank in (0, 2)]
    three.do(1, lambda rank: rank.fail(KeyError("mine"))).result(PATIENCE_S)
    with pytest.raises(NodeFailed, match="rank 1: KeyError: 'mine'"):
        waiting[0].result(PATIENCE_S)
    with pytest.raises(PeerLost, match="the run has failed: rank 1: KeyError: 'mine'"):
        waiting[1].result(PATIENCE_S)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_gone_is_named_on_all(three, who):
    waiting = [three.do(rank, begin({})) for rank in range(3) if rank != who]
    # As the system does for a process that dies: its connections end, and nothing more is said.
    gone = three.ranks[who]
    listener, gone._listener = gone._listener, None
    listener._closing = True
    listener._thread.join()
    listener._lines.close(now=True)
    for future in waiting:
        with pytest.raises(MachineDied, match=f"rank {who} is gone: its process ended without a word"):
            future.result(PATIENCE_S)


def test_a_rank_that_has_parted_is_not_missed(three):
    for future in [three.do(rank, Presence.leave) for rank in range(3)]:
        future.result(PATIENCE_S)
    for rank in (0, 1):
        three.do(rank, Presence.close).result(PATIENCE_S)
    left = three.ranks[2]
    for _ in range(3):  # it looks a few times more, at lines that have ended
        threading.Event().wait(0.3)
        left.check()


def test_nothing_is_said_to_one_that_has_parted(three, monkeypatch):
    """What is sent to a process that has ended would be waited for, at the end, for seconds."""
    for rank in (0, 1):
        three.do(rank, Presence.close).result(PATIENCE_S)
    listener, sent = three.ranks[2]._listener, []
    deadline = time.monotonic() + PATIENCE_S
    while 0 not in listener._parted and time.monotonic() < deadline:  # the one that it has a line to
        time.sleep(0.01)
    monkeypatch.setattr(listener._lines, "is_up", lambda rank: True)  # that its line has ended is not known yet
    monkeypatch.setattr(listener._lines._mailbox, "send", lambda name, packet: sent.append(name))
    three.do(2, Presence.close).result(PATIENCE_S)
    assert sent == []


def test_one_who_suffers_hears_whose_failure_it_is(three):
    explained = three.do(2, lambda rank: rank.explained(PeerLost("a member of workers is gone")))
    three.do(1, lambda rank: rank.fail(KeyError("mine"))).result(PATIENCE_S)
    assert str(explained.result(PATIENCE_S)) == "the run has failed: rank 1: KeyError: 'mine'"


def test_a_rank_that_says_what_no_rank_says_is_named(three):
    """Rank 1 has lost count; whoever has no place in the run, or is not rank 0, is not heard at all."""
    waiting = three.do(0, begin({}))
    for control in (Agreed(1), Refuse("no"), GiveUp("diverged", "no")):
        three.do(2, lambda rank, control=control: rank._listener.say(control)).result(PATIENCE_S)
    three.do(1, lambda rank: rank._listener.say(Together(7, "loop", 1, {}))).result(PATIENCE_S)
    with pytest.raises(WireError, match=r"^rank-1 sent what no node sends: Together\(number=7"):
        waiting.result(PATIENCE_S)
