"""One scenario, run and judged."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from ownpace.core.contract.events import Event
from ownpace.engines import ENGINES, Outcome
from ownpace.testing.torture.audit import Books, audited
from ownpace.testing.torture.invariants import INVARIANTS, Evidence
from ownpace.testing.torture.scenario import Scenario, draw_scenario
from ownpace.testing.torture.subjects import TortureSubject

MOST_EVENTS = 200_000
"""Far more than any run has that comes to an end."""


class TooMuch(Exception):
    """A run makes events without end."""


@dataclass(frozen=True)
class Report:
    """What came of one seed."""

    seed: int
    algorithm: str
    faults: list[str]
    complaints: list[str]
    words: str
    """What was drawn."""
    replay: str
    """The line that runs it again."""
    updates: int = 0
    virtual_s: float = 0.0

    def __str__(self) -> str:
        verdict = "\n".join(f"✗ {complaint}" for complaint in self.complaints) or "all invariants hold"
        return f"seed {self.seed}\n{self.words}\n{verdict}\nreplay: {self.replay}"


def torture(seed: int, algorithm: TortureSubject | str | None = None, num_workers: int | None = None) -> Report:
    """Draw a scenario from a seed, run it, and see whether all invariants hold.

    Args:
        seed: Equal seeds give equal runs.
        algorithm: The name of one of ours, or one of your own with what may be expected of it (None: any of ours).
        num_workers: For an algorithm that names its workers: how many there must be (None: drawn).
    """
    scenario = draw_scenario(seed, algorithm, num_workers)
    try:
        run = carry_out(scenario)
        complaints = judge(run)
        updates, virtual_s = run.end.sums.updates, run.end.t
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        complaints = [f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"]
        updates, virtual_s = 0, 0.0
    replay = f"python -m ownpace.testing.torture --seed {seed}"
    replay += f" --algorithm {algorithm}" if isinstance(algorithm, str) else ""
    return Report(seed, scenario.subject.name, scenario.faults, complaints, str(scenario), replay, updates, virtual_s)


def carry_out(scenario: Scenario) -> Evidence:
    """Run a scenario once."""
    width = len(scenario.job.task.train_samples()) + 1 if scenario.counts else None
    books = Books(scenario.subject, width)
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        books.hear(event)
        if len(events) > MOST_EVENTS:
            raise TooMuch(f"{MOST_EVENTS} events, and no end; the latest are {events[-3:]}")

    job = replace(scenario.job, algorithm=audited(scenario.subject.algorithm, books))
    outcome: Outcome = ENGINES["virtual"](job, emit, None)
    return Evidence(scenario, outcome, events, books)


def judge(run: Evidence) -> list[str]:
    """What does not hold of a run."""
    found = []
    for name, invariant in INVARIANTS.items():
        # Three of a kind say as much as thirty.
        found += [f"{name}: {complaint}" for complaint in list(invariant(run))[:3]]
    return found
