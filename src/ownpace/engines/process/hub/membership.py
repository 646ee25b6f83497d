"""Who comes and goes: the hub's part in doing without a node that is gone, and in letting one in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ownpace.core.contract.errors import Interrupted, MachineDied, OwnpaceError, PeerLost
from ownpace.engines.process.hub.departures import Departures
from ownpace.engines.process.hub.parts import HubParts
from ownpace.engines.process.meet.restarts import Restarts
from ownpace.engines.process.meet.silence import SilenceWatch
from ownpace.engines.process.presence.roll import differences, do_not_fit
from ownpace.engines.process.talk.control import Dismiss, Failed, Hello, Leaving, Refuse
from ownpace.engines.process.talk.regrouping import DeclaredDead

log = logging.getLogger(__name__)


class Membership:
    """Decides about nodes one by one; what a generation is made of then, `Generations` decides."""

    def __init__(self, parts: HubParts) -> None:
        self.on_join: Callable[[int], None] = _ignore
        """Called with the place in the fleet of a worker that was started again or is back, before it is let in."""
        self.updates_of_lost: dict[str, int] = {}
        """How many updates each node had made, as far as known, when it was lost."""
        self.departures = Departures(parts.generations)
        self._parts = parts
        self._silence = SilenceWatch(parts.mailbox)
        self._newly_lost: set[str] = set()

    @property
    def restarts(self) -> Restarts:
        """Which nodes are started again, and how."""
        return self._parts.restarts

    def look(self) -> None:
        """See to what is due."""
        self.restarts.look()
        if self._parts.has_started:
            for gone in self._silence.found():
                self.lose(gone)
        at_once = self.departures.look()
        if at_once:
            self.dismiss(at_once)
            self._parts.generations.lose(*at_once)

    def take_leaving(self, name: str, leaving: Leaving) -> None:
        """A signal asks a worker to end."""
        if name in self._parts.members:
            self.departures.take(name, leaving)
        else:  # it was about to join, and no longer is
            self._parts.generations.lose(name)
            self._parts.tell(Dismiss(leaving.signal), name)

    def dismiss(self, names: Iterable[str]) -> None:
        """Let workers go that a signal asks to end, and what goes with them."""
        for name in [each for each in names if each in self._parts.members]:
            left = self.departures.left(name)
            if left is not None:
                log.warning("%s; the others go on", left)
                self._parts.tell(Dismiss(self.departures.signal(name)), name)
            self._part_with(name, "leave")

    def lose(self, error: OwnpaceError) -> None:
        """A node is gone: go on without it, or end."""
        name, parts, generations = error.blame, self._parts, self._parts.generations
        left = self.departures.left(name)
        error = left or error
        self._silence.forget(name)
        if not generations.goes_on_without(name):
            parts.complaints.add(self._as_cause(error))
            return
        restarts = generations.restarts(name) and self.restarts.ask(name)
        if name not in parts.members:
            generations.lose(name)  # it may have been about to join
            return
        then = "it is started again, and the others go on" if restarts else "the others go on"
        log.warning("%s; %s", str(error).partition(";")[0], then)
        if isinstance(error, PeerLost):
            # It may only be stopped, or cut off: this waits on its line until it is back.
            parts.tell(DeclaredDead(), name)
        else:
            parts.mailbox.drop(name)
        parts.complaints.forget()
        self._part_with(name, "kill" if left is None else "leave")
        generations.lose(name)

    def _part_with(self, name: str, what: str) -> None:
        """A node is not there any more; `what` made it go, as records say it."""
        parts = self._parts
        self._newly_lost.add(name)
        if parts.evaluator is not None:
            parts.evaluator.forget(name)
        parts.journal.lose(name, parts.generations.now_s, what)
        self.updates_of_lost[name] = parts.journal.nodes[name].totals.updates

    def _as_cause(self, error: OwnpaceError) -> OwnpaceError:
        """A node that does not answer is why the run ends, where that is decided here: too few workers, say."""
        if isinstance(error, Interrupted):
            return Interrupted(f"{error}, and the others cannot go on without it")
        if self._parts.config.elasticity.on_failure == "stop" or not isinstance(error, PeerLost):
            return error
        cause = MachineDied(f"{str(error).partition(';')[0]}; the others cannot go on without it")
        cause.blame = error.blame
        return cause

    def newly_lost(self) -> set[int]:
        """The places in the fleet of workers that were lost since the last time."""
        lost, self._newly_lost = self._newly_lost, set()
        return {worker.index for worker in self._parts.roster.workers if worker.name in lost}

    def lose_ranks(self, gone: Iterable[int]) -> None:
        """Ranks are gone, as their own lines say."""
        for rank in gone:
            name = self._parts.roster.workers.members[rank].name
            if self._parts.has_started and name in self._parts.members | self._parts.generations.members.joining:
                error = PeerLost(f"{name} is gone: its line to rank 0 has ended")
                error.blame = name
                self.lose(error)

    def take_failure(self, name: str, failed: Failed) -> None:
        """A node has failed."""
        error = failed.error(name)
        if isinstance(error, Interrupted) and self.departures.left(name) is not None:
            self.lose(error)
        elif self._parts.has_started and name not in self._parts.members:
            log.warning("%s, which the others do without, has failed: %s", name, failed.message)
        else:
            self._parts.complaints.add(error)

    def join(self, name: str, hello: Hello) -> None:
        """A worker has been started, or has come back: it joins at the next border."""
        parts = self._parts
        if name in parts.members:  # the process that had this name is gone, and nobody has noticed
            gone = MachineDied(f"{name} is gone: it has been started again")
            gone.blame = name
            self.lose(gone)
        self.restarts.cancel(name)  # a process of this name is there
        self.departures.forget(name)
        self.on_join(parts.roster.by_name[name].index)
        self._renew_line(name)
        first = parts.journal.nodes[parts.roster.workers.members[0].name].hello
        known, fingerprint = {} if first is None else first.fingerprint, hello.fingerprint
        found = differences([{key: known[key] for key in fingerprint if key in known}, fingerprint])
        if first is not None and first.rounding != hello.rounding:
            parts.generations.round_unlike = True  # from the generation on that it joins
        if found:
            parts.tell(Refuse(do_not_fit(found)), name)
        elif not parts.generations.welcome(name):
            parts.tell(Refuse(f"{name} comes too late: the run already has as many workers as it may have"), name)

    def take_prepared(self, name: str, generation: int, checksums: list[int]) -> None:
        """A node is ready for a generation, be it one that was started again."""
        if name not in self._parts.members.union(self._parts.config.elasticity.terms.workers):
            self._renew_line(name)  # of a worker, that was done when it said Hello
        self._parts.generations.take_prepared(name, generation, checksums)

    def _renew_line(self, name: str) -> None:
        """Forget the line to the process that had this name before; that it ends now means nothing."""
        self._parts.mailbox.drop(name)
        self._silence.forget(name)


def _ignore(index: int) -> None:
    pass
