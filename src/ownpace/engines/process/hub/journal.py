"""The records of a run on processes, made from what all nodes report: events, progress, totals, the last record."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace

from ownpace.core.contract import events
from ownpace.core.contract.errors import OwnpaceError, WireError
from ownpace.engines.job import ProgressReport
from ownpace.engines.ledger import Ledger, UpdateTotals, sums_of
from ownpace.engines.process.hub.absences import Absences
from ownpace.engines.process.hub.config import HubConfig
from ownpace.engines.process.hub.replicas import Replicas, RoundedApart
from ownpace.engines.process.talk.control import Hello, Report, WorkDone
from ownpace.engines.process.talk.regrouping import RegroupPlan
from ownpace.engines.roster import Roster

_PROGRESS_EVERY_S = 0.1
_MOST_SPANS = 512
"""Of each node: it is known only later at which moment the budget was spent, and what was in flight then."""
log = logging.getLogger(__name__)


@dataclass
class NodeRecord:
    """What the hub knows of one node."""

    totals: UpdateTotals = field(default_factory=UpdateTotals)
    work: WorkDone = field(default_factory=WorkDone)
    spans: deque[list[float]] = field(default_factory=lambda: deque(maxlen=_MOST_SPANS))
    """Start and end of the latest computations."""
    now_s: float = 0.0
    hello: Hello | None = None
    """What a worker has said that it trains."""
    has_finished: bool = False
    """Nothing more comes from it."""


class Journal:
    """Writes the run's events, and sums up what its nodes reported."""

    def __init__(self, roster: Roster, config: HubConfig) -> None:
        self.nodes = {node.name: NodeRecord() for node in roster.nodes}
        self.summary_lines: list[str] = []
        """The first, the evaluating and the last record: what every rank is told at the end."""
        self.replicas = Replicas([worker.name for worker in roster.workers], config.layers)
        self.apart = RoundedApart()
        self._roster = roster
        self._workers = [worker.name for worker in roster.workers]
        self._config = config
        self._last_version = 0
        self.generation = 1
        """The number of the one that runs, by the records."""
        self._next_progress_s = 0.0
        self._absences = Absences()

    def begin(self) -> None:
        """Write the first record; of a run that is resumed, it is written already."""
        resumed = self._config.elasticity.resumed
        if resumed is None:
            self.emit(self._config.header)
        else:
            self.summary_lines.append(events.to_line(self._config.header))
            self._last_version, self.generation = resumed.version, resumed.generation

    def tallies(self) -> dict[str, list[float]]:
        """What each worker has done so far: samples, seconds of computing and of loading."""
        works = {name: node.work for name, node in self.nodes.items() if name in self._workers}
        return {name: [float(work.samples), work.compute_s, work.load_s] for name, work in works.items()}

    def lose(self, name: str, now: float, what: str) -> None:
        """A node is gone; `what` happened to it."""
        self._absences.lose(name, now)
        self.emit(events.Fault(now, name, what))

    def begin_generation(self, roster: Roster, plan: RegroupPlan | None, why: str, now: float, lost: int) -> None:
        """A generation begins, with these nodes, as it was planned; the first needs no plan. `lost`: updates."""
        if plan is None:
            return
        if why != "resume":
            names = [worker.name for worker in roster.workers]
            before = [worker.name for worker in self._roster.workers]
            members = None if names == before else names
            self.generation += 1
            if not len(roster.servers):  # what a dead worker alone had made, and reported
                lost = max(0, self._last_version - plan.version)
            self.emit(events.Generation(now, self.generation, why, members, plan.version, plan.samples, lost))
        self._roster = roster
        self._absences.meet((worker.name for worker in roster.workers), now)
        self.replicas = Replicas([worker.name for worker in roster.workers], self._config.layers)
        # What a dead worker alone had made counts no more: the same number of updates is reached again without it.
        self._last_version = min(self._last_version, plan.version)

    def emit(self, event: events.Event) -> None:
        """Write a record."""
        self._config.emit(event)
        if isinstance(event, events.Run | events.Evaluation | events.End):
            self.summary_lines.append(events.to_line(event))

    def take(self, name: str, report: Report) -> None:
        """Take in a node's report.

        Raises:
            WireError: A line of it is no event.
        """
        # All are read before the first is written: of a report that is none, nothing is taken in.
        read = [_event(line) for line in report.events]
        node = self.nodes[name]
        node.totals, node.work, node.now_s = report.totals, report.work, report.now_s
        node.spans.extend(report.work.spans)
        for event in read:
            self._relay(event)

    def _relay(self, event: events.Event) -> None:
        """Pass an event on; of updates of the same version, which replicas make, only the first."""
        if isinstance(event, events.Update) and not len(self._roster.servers):
            if event.version <= self._last_version:
                return
            self._last_version = event.version
        self.emit(event)

    @property
    def totals(self) -> UpdateTotals:
        """Those of the run: the first server's, or of the worker that has made most updates."""
        if len(self._roster.servers):
            return self.nodes[self._roster.servers.members[0].name].totals
        # Replicas make the same updates: of those that are equally far, the first to get there counts.
        totals = (self.nodes[worker.name].totals for worker in self._roster.workers)
        return max(totals, key=lambda one: (one.updates, -one.t))

    def show_progress(self) -> None:
        """Report how far the run is, if that is wanted and the last report is long enough ago."""
        now = time.monotonic()
        if self._config.on_progress is None or now < self._next_progress_s:
            return
        self._next_progress_s = now + _PROGRESS_EVERY_S
        workers = {worker.name: self.nodes[worker.name] for worker in self._roster.workers}
        losses = [node.work.loss for node in workers.values() if node.work.loss is not None]
        paces = {name: node.work.pace for name, node in workers.items()}
        self._config.on_progress(
            ProgressReport(
                samples=self.totals.samples,
                seconds=max(self.totals.t, 1e-9),
                loss=sum(losses) / len(losses) if losses else None,
                limit_samples_per_s=sum(paces.values()),
                paces=paces,
                busy={n: min(1.0, w.work.compute_s / w.now_s) if w.now_s > 0 else 0.0 for n, w in workers.items()},
            )
        )

    def end(self, ledger: Ledger, now: float, error: OwnpaceError | None, *, is_done: bool) -> None:
        """Write the last record."""
        totals = self.totals
        # Closed totals know when the budget was spent; a run that ended early counts up to now.
        seconds = totals.t if totals.closed or is_done else now if totals.updates else 0.0
        tallies = {name: _tally(node, seconds) for name, node in self.nodes.items() if name in self._workers}
        sums = sums_of(totals, seconds, self._limit(seconds), tallies, self.replicas.are_identical)
        if self.apart.times and error is None:
            log.warning("%s", self.apart)
            sums = replace(sums, rounded_apart=self.apart.times, rounded_apart_max=self.apart.most)
        ledger.end(now, error, sums)

    def _limit(self, seconds: float) -> float:
        """What the workers could have done up to then, each as long as it was there."""
        if self._config.limit_samples_per_s is not None:
            return self._config.limit_samples_per_s(seconds, self._absences.spans)
        return sum(self.nodes[name].work.pace * self._absences.share_there(name, seconds) for name in self._workers)


def _event(line: str) -> events.Event:
    try:
        event = events.from_line(line)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"a report with a line that is no event: {line[:80]!r} ({error!r:.80})") from None
    if isinstance(event, events.Update) and type(event.version) is not int:
        raise WireError(f"a report of an update with the version {event.version!r:.80}")
    return event


def _tally(node: NodeRecord, seconds: float) -> events.Tally:
    """What a worker had done by that time: what it computed later was in flight."""
    work, late_s = node.work, sum(end - max(start, seconds) for start, end in node.spans if end > seconds)
    return events.Tally(work.samples, max(0.0, work.compute_s - late_s), work.load_s)
