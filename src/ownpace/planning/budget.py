"""What the runs of a plan may cost, so that it is over when it should be: how long they are, and how many.

A short run in each process shows what a sample costs, to learn from and to be tested with. Then the most thorough of
some efforts is chosen that the time is enough for: all algorithms with all seeds, or the most promising with one seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ownpace.core.learning.dataset_samples import samples_to_learn, samples_to_test
from ownpace.core.learning.task import Task
from ownpace.planning.candidates import Candidate
from ownpace.planning.cost import Cost, mean_cost
from ownpace.planning.timing import Timing
from ownpace.planning.trial import Trial, Tried
from ownpace.run import Config

FOR_LEARNING = 0.55
"""Of a plan's time, about."""
MOST_EPOCHS = 30.0
MOST_UPDATES, LEAST_UPDATES = 300, 20
"""Of the longest runs: with fewer updates, nothing can be learnt; with more, nothing more is learnt of the order."""
MOST_TESTED, LEAST_TESTED = 2000, 250
"""Test samples of an evaluation."""
MOST_EVALUATIONS, LEAST_EVALUATIONS = 80, 20
"""Of a longest run."""
PROBE_S = 1.0
"""Of each probe, from its first update on."""
_PROBE_TESTS = 100


@dataclass(frozen=True)
class Effort:
    """How thorough a plan is."""

    most_searches: float
    """So many algorithms are sure to be searched, about; others if there is time left."""
    thorough: bool
    """Whether each is searched widely and run with all seeds; else fewer rates are tried, and only those that are close
    to the first in the end are run with more than one seed."""
    runs_each: float
    """Runs of full length that an algorithm's search is worth, about: most are cut short."""
    used: float
    """Of the time, on all cores, how much is counted on: the rest is for what was reckoned wrong."""
    trials_each: int
    """The same in trials, about, for those who wait."""
    least_updates: int
    """Of the longest runs; where that is too much, the next effort may be small enough."""


EFFORTS = (
    Effort(math.inf, thorough=True, runs_each=4.0, used=0.5, trials_each=11, least_updates=3 * LEAST_UPDATES),
    Effort(4, thorough=False, runs_each=3.0, used=0.5, trials_each=9, least_updates=2 * LEAST_UPDATES),
    Effort(2, thorough=False, runs_each=3.0, used=1.0, trials_each=9, least_updates=LEAST_UPDATES),
)


@dataclass(frozen=True)
class Affordable:
    """What there is to be spent, and what a sample costs, by the clock or by the processor's time."""

    total_s: float
    cost: Cost

    def num_test(self, samples: int, evaluations: int, available: int) -> int:
        """Of an evaluation: as many as cost no more than the training in between."""
        wanted = samples * self.cost.train_s / (evaluations * self.cost.test_s)
        return min(MOST_TESTED, available, max(LEAST_TESTED, int(wanted)))

    def share(self, samples: int, evaluations: int, available: int, num_runs: float) -> float:
        """Of what there is, what so many runs of this length cost."""
        tests = evaluations * self.num_test(samples, evaluations, available)
        return num_runs * (samples * self.cost.train_s + tests * self.cost.test_s) / self.total_s


def num_evaluations(samples: float, samples_per_update: float, eval_every: int | None) -> int:
    """Of a longest run: as often as the user will, since who tests rarely sees a target late."""
    every = max(samples_per_update, eval_every or 0)
    return min(MOST_EVALUATIONS, max(LEAST_EVALUATIONS, int(samples / every)))


@dataclass(frozen=True)
class Budget:
    """What a search may use."""

    effort: Effort
    samples: int | None
    """Of the longest runs; None: too few to learn anything."""
    num_test: int
    num_evaluations: int
    epochs: float
    """The samples in epochs."""
    why: str = ""
    """Without samples: why."""

    @property
    def eval_every(self) -> int | None:
        """Samples between evaluations."""
        return None if self.samples is None else max(1, self.samples // self.num_evaluations)


def probe(base: Config, candidate: Candidate, timing: Timing) -> Trial:
    """A short run, to see what a sample costs."""
    samples = math.ceil(MOST_UPDATES * timing.samples_per_update)
    changes = {"algorithm": candidate.algorithm, "parameters": dict(candidate.parameters), "lr": 1e-4}
    changes |= {"samples": samples, "eval_every": samples // 10}
    return Trial(base, changes, num_test=_PROBE_TESTS, seconds=PROBE_S)


def affordable(
    tried: Sequence[Tried], in_time_s: float, in_work_s: float | None, num_processes: int
) -> list[Affordable]:
    """What there is to be spent after these probes; nothing, if none of them made an update.

    Args:
        tried: The probes, one in each process.
        in_time_s: Seconds that are left.
        in_work_s: That an idle machine may take for it (None: all that is left).
        num_processes: How many share the work.
    """
    given = ((in_time_s, [each.time for each in tried]), (in_work_s, [each.work for each in tried]))
    known = [(seconds, [cost for cost in costs if cost is not None]) for seconds, costs in given]
    return [
        Affordable(num_processes * seconds, mean_cost(costs))
        for seconds, costs in known
        if seconds is not None and costs
    ]


def budget_for(
    config: Config,
    task: Task,
    affordable: Sequence[Affordable],
    timing: Timing,
    num_searches: int,
    seconds: float,
    left_s: float,
) -> Budget:
    """The most thorough plan that the time is enough for.

    Args:
        config: What the user wants: their samples or epochs are not exceeded.
        task: What is learnt.
        affordable: What there is to be spent, in one way or several.
        timing: Of the algorithm that is searched first.
        num_searches: How many algorithms there are to be searched.
        seconds: That the plan may take, to say what would be enough.
        left_s: Of them, for this.
    """
    num_train, available = len(samples_to_learn(task)), len(samples_to_test(task))
    per_update = timing.samples_per_update
    wanted = max(MOST_EPOCHS * num_train, LEAST_UPDATES * per_update)
    if config.samples is not None or config.epochs is not None:
        wanted = min(wanted, config.samples or (config.epochs or 0) * num_train)
    wanted = min(wanted, max(MOST_UPDATES * per_update, 4 * num_train))
    evaluations = partial(num_evaluations, samples_per_update=per_update, eval_every=config.eval_every)

    def share(effort: Effort, samples: float) -> float:
        runs = effort.runs_each * min(num_searches, effort.most_searches) / effort.used
        return max(each.share(round(samples), evaluations(samples), available, runs) for each in affordable)

    if wanted < LEAST_UPDATES * per_update:
        why = f"{round(wanted):,} samples are too few to learn from in updates of {per_update:,.0f}"
        return _nothing(f"ranked by speed alone: {why}")
    for effort in EFFORTS:
        least = max(LEAST_UPDATES, min(wanted / per_update, effort.least_updates)) * per_update
        samples = next((samples for samples in _halves(wanted, least) if share(effort, samples) <= 1), None)
        if samples is not None:
            tests = max(each.num_test(round(samples), evaluations(samples), available) for each in affordable)
            return Budget(effort, round(samples), tests, evaluations(samples), samples / num_train)
    missing_s = left_s * (share(EFFORTS[-1], LEAST_UPDATES * per_update) - 1)
    enough_s = seconds + missing_s / FOR_LEARNING
    return too_slow(per_update, f"about --seconds {_round_up(enough_s)} would be")


def _halves(most: float, least: float) -> Iterator[float]:
    """Lengths to choose from: halves, so that a machine that is a little slower today makes the same plan."""
    while most > least:
        yield most
        most /= 2
    yield least


def too_slow(samples_per_update: float, remedy: str = "give more with --seconds") -> Budget:
    """Where nothing can be learnt, and what would help."""
    why = f"ranked by speed alone: the time is not enough for {LEAST_UPDATES} updates of {samples_per_update:,.0f} "
    return _nothing(f"{why}samples at a few learning rates; {remedy}, or try a smaller --model or --batch-size")


def _nothing(why: str) -> Budget:
    return Budget(EFFORTS[-1], None, LEAST_TESTED, LEAST_EVALUATIONS, 0.0, why)


def _round_up(seconds: float) -> int:
    """To two digits.

    >>> _round_up(1234), _round_up(7.2)
    (1300, 8)
    """
    unit: int = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return math.ceil(seconds / unit) * unit
