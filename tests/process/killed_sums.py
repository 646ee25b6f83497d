"""Members of a group that sums through memory are killed and stopped at drawn moments; what the others see.

    python killed_sums.py SEED FAMILIES

A family is forked from this process, which has torch already. Its members meet, and sum without a pause, tensors whose
numbers say which generation, sum and member they are of. At a drawn moment one of them is killed or stopped. The others
leave and meet anew, without it; one that was stopped wakes up while they sum. Written to the standard output: the
blows, the sums, and every complaint.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ownpace.core.contract.errors import PeerLost
from ownpace.engines.process.talk.channels import finish
from ownpace.engines.process.talk.shared_meeting import SharedMeeting
from ownpace.engines.process.talk.shared_sums import SharedSum, SharedSums

PATIENCE_S = 60.0
LARGEST = 20_000
LIKE = torch.zeros(LARGEST)


class Wire:
    """JSON lines between a member and the process that forked it."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._rest = b""
        self._lines: list[dict[str, Any]] = []

    def say(self, **what: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self.end.sendall(json.dumps(what).encode() + b"\n")

    def hear(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None: none came, or the other is gone."""
        deadline = time.monotonic() + timeout_s
        while not self._lines:
            if not select.select([self.end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            try:
                got = self.end.recv(1 << 16)
            except OSError:
                return None
            if not got:
                return None
            *whole, self._rest = (self._rest + got).split(b"\n")
            self._lines += [json.loads(line) for line in whole]
        return self._lines.pop(0)


class Member:
    """One process of a family, as far as a group knows it."""

    def __init__(self, wire: Wire, draw: random.Random) -> None:
        self._wire = wire
        self._draw = draw
        self._generation = 0
        self._rank = -1
        self.made = 0

    def live(self) -> None:
        """Sum in one generation after the other."""
        while True:
            plan = self._wire.hear(PATIENCE_S)
            if plan is None:
                return
            if plan["do"] != "begin":
                continue  # of a generation that this member has left by itself
            self._generation, self._rank = plan["generation"], plan["rank"]
            try:
                self._sum_for_ever(plan["size"])
            except PeerLost as error:
                self._wire.say(is_="lost", generation=self._generation, why=str(error), made=self.made)
            self._look_for_leaks()

    def _sum_for_ever(self, size: int) -> None:
        meeting = SharedMeeting("workers", self._rank, size, LIKE.nbytes, LIKE)
        made: Any = ()
        try:
            try:
                self._wire.say(is_="offer", generation=self._generation, text=meeting.offer)
                said = [text.encode() for text in self._await("offers")["texts"]]
                made = meeting.open(said, self._agree, self.heed)
            finally:
                meeting.close()
            if not made:
                raise PeerLost("one of them has no memory")
            self._sum(made[0], size)
        finally:
            for each in made:
                each.close(abandon=True)

    def _agree(self, mine: bool) -> bool:
        self._wire.say(is_="agrees", generation=self._generation, yes=mine)
        return bool(self._await("agreed")["yes"])

    def _sum(self, sums: SharedSums, size: int) -> None:
        under_way: list[tuple[SharedSum, int, torch.Tensor]] = []
        plan = random.Random(self._generation)  # the same on all members
        number = 0
        while True:
            number += 1
            values = torch.full((plan.randint(1, LARGEST),), self._value(number, self._rank), dtype=torch.float32)
            under_way.append((sums.all_reduce(values), number, values))
            while len(under_way) > 2 or (under_way and self._draw.random() < 0.5):
                work, of, summed = under_way.pop(self._draw.randrange(len(under_way)))
                finish([work], "workers", self.heed)
                expected = sum(self._value(of, rank) for rank in range(size))
                if not bool((summed == expected).all()):
                    wrong = summed[summed != expected][0].item()
                    self._wire.say(is_="wrong", what=f"sum {of} of {self._generation}: {wrong}, not {expected}")
                self.made += 1
            self.heed()

    def _value(self, number: int, rank: int) -> float:
        return float(self._generation * 10_000 + number % 1000 * 10 + rank)  # whole numbers that a float32 has

    def heed(self) -> None:
        """As a member of a run hears from the hub that another is silent, or that it goes on without this one."""
        if self._hear(0.0) is not None:
            raise PeerLost("the others have left")

    def _await(self, what: str) -> dict[str, Any]:
        heard = self._hear(PATIENCE_S)
        if heard is None or heard["do"] != what:
            raise PeerLost("one of them is gone")
        return heard

    def _hear(self, timeout_s: float) -> dict[str, Any] | None:
        """The next word that is not about what is over."""
        while (heard := self._wire.hear(timeout_s)) is not None and heard["generation"] < self._generation:
            pass
        return heard

    def _look_for_leaks(self) -> None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:ownpace")
        links = [_target(link) for link in Path("/proc/self/fd").iterdir()]
        files = sum("/memfd:ownpace" in link or "pidfd" in link for link in links)
        if maps or files:
            self._wire.say(is_="wrong", what=f"left after generation {self._generation}: {maps} maps, {files} files")


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


@dataclass
class Child:
    """A member, as its parent knows it."""

    pid: int
    wire: Wire
    made: int = 0


class Family:
    """All processes that were forked together, and what is done to them."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.complaints: list[str] = []
        self.blows: dict[str, int] = {}
        self.longest_s = 0.0
        self._generation = 0
        self._children = [self._fork() for _ in range(draw.randint(3, 5))]
        self._all = list(self._children)

    @property
    def made(self) -> int:
        return sum(child.made for child in self._all)

    def _fork(self) -> Child:
        mine, its = socket.socketpair()
        seed = self._draw.getrandbits(30)
        pid = os.fork()
        if pid == 0:
            mine.close()
            try:
                Member(Wire(its), random.Random(seed)).live()
            except BaseException:
                Wire(its).say(is_="wrong", what=traceback.format_exc())
            finally:
                os._exit(0)
        its.close()
        return Child(pid, Wire(mine))

    def live(self) -> None:
        """One blow after the other, until too few are left."""
        try:
            while len(self._children) > 1 and not self.complaints:
                self._strike()
        finally:
            for child in self._all:
                _kill(child.pid)
                os.waitpid(child.pid, 0)
                child.wire.end.close()

    def _strike(self) -> None:
        self._generation += 1
        early = self._draw.random() < 0.15  # while they meet
        victim, how = self._draw.choice(self._children), self._draw.choice(["kill", "stop"])
        self._begin()
        if early:
            self._introduce(lambda: self._hit(victim, how))
        elif self._introduce():
            time.sleep(self._draw.expovariate(1 / 0.01))
            self._hit(victim, how)
        else:
            self.complaints.append("a family without a blow does not meet")
            return
        self._children.remove(victim)
        begun = time.monotonic()
        # Of a stopped one nobody can know; of a killed one somebody has to, and tells the others, as a hub would.
        if how == "kill" and not early:
            self._await_first()
        for child in self._children:
            child.wire.say(do="leave", generation=self._generation)
        for child in self._children:
            self._await(child, "lost")
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        if how == "stop":
            self._wake(victim)

    def _hit(self, victim: Child, how: str) -> None:
        os.kill(victim.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        self.blows[how] = self.blows.get(how, 0) + 1

    def _begin(self) -> None:
        for rank, child in enumerate(self._children):
            child.wire.say(do="begin", generation=self._generation, rank=rank, size=len(self._children))

    def _await_first(self) -> None:
        if not select.select([child.wire.end for child in self._children], [], [], PATIENCE_S)[0]:
            self.complaints.append(f"generation {self._generation}: nobody notices that one was killed")

    def _wake(self, victim: Child) -> None:
        """It goes on where it was, while the others are in another generation; then it learns what has happened."""
        self._generation += 1
        self._begin()
        if len(self._children) > 1 and not self._introduce():
            self.complaints.append("those that are left do not meet")
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(self._draw.uniform(0.0, 0.02))
        victim.wire.say(do="leave", generation=self._generation - 1)
        self._await(victim, "lost", of=self._generation - 1)
        for child in self._children:
            child.wire.say(do="leave", generation=self._generation)
        for child in self._children:
            self._await(child, "lost")
        if self._draw.random() < 0.5:
            self._children.append(victim)  # it joins anew

    def _introduce(self, blow: Callable[[], None] | None = None) -> bool:
        """Pass on what members say when they meet; returns whether all did. `blow`: strikes when all have offered."""
        offers = [self._await(child, "offer") for child in self._children]
        for child in self._children:
            child.wire.say(do="offers", generation=self._generation, texts=[each.get("text", "") for each in offers])
        if blow is not None:
            time.sleep(self._draw.uniform(0.0, 0.002))
            blow()
            return False
        agreed = [self._await(child, "agrees") for child in self._children]
        for child in self._children:
            child.wire.say(do="agreed", generation=self._generation, yes=all(each.get("yes", False) for each in agreed))
        return all(offers) and all(agreed)

    def _await(self, child: Child, what: str, of: int = 0) -> dict[str, Any]:
        generation = of or self._generation
        deadline = time.monotonic() + PATIENCE_S
        while (left_s := deadline - time.monotonic()) > 0:
            heard = child.wire.hear(left_s)
            if heard is None:
                break
            if heard["is_"] == "wrong":
                self.complaints.append(heard["what"])
            elif heard["generation"] == generation:
                child.made = heard.get("made", child.made)
                if heard["is_"] == what:
                    return heard
        self.complaints.append(f"generation {generation}: no {what!r} of {child.pid} for {PATIENCE_S:g} s")
        return {}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def torture(seed: int, families: int, said: Callable[[str], None]) -> None:
    draw = random.Random(seed)
    blows: dict[str, int] = {}
    made, longest_s, complaints = 0, 0.0, []
    for number in range(families):
        family = Family(draw)
        family.live()
        made, longest_s = made + family.made, max(longest_s, family.longest_s)
        complaints += [f"family {number}: {complaint}" for complaint in family.complaints]
        for how, count in family.blows.items():
            blows[how] = blows.get(how, 0) + count
    said(json.dumps({"blows": blows, "sums": made, "longest_s": longest_s, "complaints": complaints}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torture(int(sys.argv[1]), int(sys.argv[2]), print)
