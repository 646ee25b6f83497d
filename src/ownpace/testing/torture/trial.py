"""One scenario, run and judged."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from ownpace.core.contract.events import Event, Update, to_line
from ownpace.core.learning.dataset_samples import samples_to_learn
from ownpace.core.learning.plain_state import Filling, Outline, PlainState
from ownpace.engines import ENGINES, Outcome
from ownpace.testing.torture.audit import Books, audited
from ownpace.testing.torture.evidence import Evidence, KeptCheckpoint
from ownpace.testing.torture.invariants import INVARIANTS
from ownpace.testing.torture.scenario import Scenario, draw_scenario
from ownpace.testing.torture.subjects import TortureSubject

MOST_EVENTS = 200_000
"""Far more than any run has that comes to an end."""


class TooMuch(Exception):
    """A run makes events without end."""


@dataclass(frozen=True)
class TortureReport:
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


def torture(seed: int, algorithm: TortureSubject | str | None = None, num_workers: int | None = None) -> TortureReport:
    """Draw a scenario from a seed, run it, and see whether all invariants hold.

    Args:
        seed: Equal seeds give equal runs.
        algorithm: The name of one of ours, or one of your own with what may be expected of it (None: any of ours).
        num_workers: For an algorithm that names its workers: how many there must be (None: drawn).
    """
    scenario = draw_scenario(seed, algorithm, num_workers)
    try:
        run = carry_out(scenario)
        complaints = judge(run) or judge_resumed(scenario, run) or judge_timed(scenario, run)
        updates, virtual_s = run.end.sums.updates, run.end.t
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        complaints = [f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"]
        updates, virtual_s = 0, 0.0
    replay = f"python -m ownpace.testing.torture --seed {seed}"
    replay += f" --algorithm {algorithm}" if isinstance(algorithm, str) else ""
    return TortureReport(
        seed, scenario.subject.name, scenario.faults, complaints, str(scenario), replay, updates, virtual_s
    )


def carry_out(scenario: Scenario, begun: KeptCheckpoint | None = None) -> Evidence:
    """Run a scenario once, from its beginning or from a checkpoint."""
    width = len(samples_to_learn(scenario.job.task)) + 1 if scenario.counts else None
    books = Books(scenario.subject, width) if begun is None else begun.books.copy()
    events: list[Event] = []
    checkpoints: list[KeptCheckpoint] = []

    def keep(state: PlainState) -> None:
        checkpoints.append(KeptCheckpoint(as_from_a_file(state), len(events), books.copy()))

    def emit(event: Event) -> None:
        events.append(event)
        books.hear(event)
        if len(events) > MOST_EVENTS:
            raise TooMuch(f"{MOST_EVENTS} events, and no end; the latest are {events[-3:]}")

    job = replace(
        scenario.job,
        algorithm=audited(scenario.subject.algorithm, books),
        on_checkpoint=keep,
        resume_from=None if begun is None else begun.state,
    )
    outcome: Outcome = ENGINES["virtual"](job, emit, None)
    return Evidence(scenario, outcome, events, books, checkpoints)


def judge_resumed(scenario: Scenario, run: Evidence) -> list[str]:
    """What does not hold once a run is resumed: on the same fleet it is the same, bit for bit."""
    if scenario.resumes is None or not run.checkpoints:
        return []
    chosen = run.checkpoints[int(scenario.resumes * len(run.checkpoints))]
    where = f"resumed from the checkpoint before event {chosen.events}"
    if scenario.other_fleet is not None:
        other = replace(
            scenario, job=replace(scenario.job, fleet=scenario.other_fleet, min_workers=1, max_workers=None)
        )
        resumed = carry_out(other, chosen)
        events = [*run.events[: chosen.events], *resumed.events]
        whole = replace(resumed, events=events, earlier=scenario.job.fleet.fault)
        return [f"{where}: {complaint}" for complaint in judge(whole)]
    resumed = carry_out(scenario, chosen)
    for number, pair in enumerate(zip_longest(run.events[chosen.events :], resumed.events)):
        first, second = ("nothing" if event is None else to_line(event) for event in pair)
        if first != second:
            return [f"{where}: event {chosen.events + number} was {first} and is {second}"]
    if not torch.equal(run.values, resumed.values):
        return [f"{where}: events are the same, but not the parameters"]
    return []


def judge_timed(scenario: Scenario, run: Evidence) -> list[str]:
    """What does not hold where time is simulated alone: every update happens when it does with gradients."""
    if not scenario.timed or run.may_part:  # without gradients, nobody knows whose samples servers have learnt from
        return []
    timed: list[Event] = []
    ENGINES["virtual"](replace(scenario.job, timing_only=True), timed.append, None)
    both = [[_made(event) for event in events if isinstance(event, Update)] for events in (run.events, timed)]
    other = [pair for pair in zip_longest(*both) if pair[0] != pair[1]]
    return [f"without gradients, an update is {timed} instead of {made}" for made, timed in other[:3]]


def _made(update: Update) -> tuple[float, str, int, int, int]:
    return update.t, update.who, update.version, update.samples, update.staleness


def as_from_a_file(state: PlainState) -> PlainState:
    """A checkpoint as it would be read again: what a file cannot hold is not in it."""
    outline = Outline()
    text = json.dumps(outline.of(state), allow_nan=False)
    filled = Filling({name: tensor.clone() for name, tensor in outline.tensors.items()}).of(json.loads(text))
    assert isinstance(filled, dict)
    return filled


def judge(run: Evidence) -> list[str]:
    """What does not hold of a run."""
    found = []
    for name, invariant in INVARIANTS.items():
        # Three of a kind say as much as thirty.
        found += [f"{name}: {complaint}" for complaint in list(invariant(run))[:3]]
    return found
