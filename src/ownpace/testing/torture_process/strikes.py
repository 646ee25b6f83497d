"""Blows carried out: who was hit, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ownpace.core.contract.events import Fault, Generation
from ownpace.testing.torture_process.blows import Blow, Ordeal
from ownpace.testing.torture_process.watched import WatchedRun


@dataclass(frozen=True)
class Strike:
    """A blow that was struck."""

    blow: Blow
    who: str
    at: float


@dataclass(frozen=True)
class GotOver:
    """When the others noticed a blow, and when they went on."""

    noticed: float
    regrouped: float
    lost: int
    """Updates."""


def got_over(run: WatchedRun, strike: Strike) -> GotOver | None:
    """How a blow was got over; None: it has not been yet."""
    at = noticed(run, strike)
    for seen in [] if at is None else run.of(Generation, at):
        assert at is not None
        assert isinstance(seen.event, Generation)
        if seen.event.why in ("death", "restart"):
            return GotOver(at, seen.at, seen.event.lost)
    return None


def noticed(run: WatchedRun, strike: Strike) -> float | None:
    """When the hub knew of a blow; None: it does not yet."""
    return next((seen.at for seen in run.of(Fault, strike.at) if _is_of(seen.event, strike.who)), None)


def _is_of(event: object, who: str) -> bool:
    return isinstance(event, Fault) and event.who == who


class Striker:
    """Strikes one blow after the other."""

    def __init__(self, run: WatchedRun, links: Callable[[str, bool], None] | None = None) -> None:
        self.strikes: list[Strike] = []
        self._run = run
        self._links = links
        """Makes the link of a worker's host good or bad."""
        self._release: dict[Strike, Callable[[], None]] = {}
        run.on_look = self._let_go

    def strike_all(self, ordeal: Ordeal) -> None:
        """Strike all blows, and wait until all nodes are there again.

        Raises:
            StandsStill: The run does not get over them.
        """
        run = self._run
        for blow in ordeal.blows:
            if blow.samples and self.strikes:
                run.until(self._all_got_over, f"get over {self.strikes[-1].who}")
            self._await(blow)
            time.sleep(blow.delay_s)
            self._strike(blow)
        run.until(self._all_got_over, f"get over {self.strikes[-1].who}")
        run.until(lambda: set(run.members) == set(run.workers), "have all workers again")

    def _await(self, blow: Blow) -> None:
        run, since = self._run, time.monotonic()
        run.until(lambda: run.samples_since(since) >= blow.samples, f"learn {blow.samples} samples")
        run.until(lambda: self._candidates(blow), "have nodes enough to lose one")

    def _all_got_over(self) -> bool:
        """Whether all have been, and an update was made since."""
        over = [got_over(self._run, strike) for strike in self.strikes]
        return all(over) and self._run.samples_since(max(each.regrouped for each in over if each)) > 0

    def _candidates(self, blow: Blow) -> list[str]:
        """The nodes that may be hit now: of the workers, two are always left."""
        hit = {strike.who for strike in self.strikes if not got_over(self._run, strike)}
        if blow.helper:
            helpers = {name for name in self._run.processes() if name.startswith(("server", "communicator"))}
            return sorted(helpers - hit)
        names = sorted(set(self._run.members) - hit)
        if blow.how == "cut":
            return names[1:] if len(names) > 2 else []  # the first is where the hub is
        return names if len(names) > 2 else []

    def _strike(self, blow: Blow) -> None:
        names = self._candidates(blow)
        processes = self._run.processes()
        names = names if blow.how == "cut" else [name for name in names if name in processes]
        if not names:  # it was lost by itself, or ended
            return
        strike = Strike(blow, names[blow.victim % len(names)], time.monotonic())
        if blow.how == "cut":
            assert self._links is not None
            links = self._links
            links(strike.who, False)
            self._release[strike] = lambda: links(strike.who, True)
        elif blow.how == "stop":
            pid = processes[strike.who]
            os.kill(pid, signal.SIGSTOP)
            self._release[strike] = lambda: _go_on(pid)
        else:
            os.kill(processes[strike.who], signal.SIGKILL)
        self.strikes.append(strike)
        if blow.again:
            self._strike_successor(strike, processes[strike.who])

    def _strike_successor(self, strike: Strike, pid: int) -> None:
        """Kill the next process of a node, perhaps before it takes part: then no record tells of it."""
        run = self._run
        run.until(lambda: run.processes().get(strike.who, pid) != pid, f"start {strike.who} again")
        time.sleep(strike.blow.delay_s)
        os.kill(run.processes()[strike.who], signal.SIGKILL)

    def _let_go(self) -> None:
        """What was only stopped or cut off comes back some time after the others have noticed."""
        for strike in list(self._release):
            if noticed(self._run, strike) and time.monotonic() > strike.at + strike.blow.hold_s:
                self._release.pop(strike)()


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):  # another was started in its place
        os.kill(pid, signal.SIGCONT)
