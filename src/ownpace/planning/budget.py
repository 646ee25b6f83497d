"""How long the runs of a plan may be: as long as the time that it may take allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ownpace.core.learning.dataset_samples import samples_to_learn, samples_to_test
from ownpace.core.learning.task import Task
from ownpace.planning.candidates import Candidate
from ownpace.planning.timing import Timing
from ownpace.planning.trial import Trial, Tried
from ownpace.run import Config

USUAL_S = 60.0
"""What a plan may take on an idle machine, where nothing else is said."""
USED = 0.5
"""Of that time, on all cores: the rest is for starting processes, speeds, and what was reckoned wrong."""
RUNS_EACH = 4.0
"""Runs of full length that an algorithm's search and its seeds are worth, about: most are cut short."""
MOST_EPOCHS = 30.0
MOST_UPDATES, LEAST_UPDATES = 300, 20
"""Of the longest runs: with fewer updates, nothing can be learnt; with more, nothing more is learnt of the order."""
MOST_TESTED = 2000
"""Test samples of an evaluation."""
NUM_PROBES = 3


@dataclass(frozen=True)
class Budget:
    """What a search may use."""

    samples: int | None
    """Of the longest runs; None: too few to learn anything."""
    num_test: int
    epochs: float
    """The same in epochs."""
    runs_each: int = 11
    """Trials of an algorithm's search, about, for those who wait."""
    why: str = ""
    """Without samples: why."""


def probes(base: Config, candidate: Candidate, num_workers: int) -> list[Trial]:
    """A few short runs, to see what a sample costs; the first ones of a process cost more than the others."""
    samples = 2 * num_workers * base.batch_size
    changes = {"algorithm": candidate.algorithm, "parameters": dict(candidate.parameters), "lr": 1e-4}
    changes |= {"samples": samples, "eval_every": samples}
    return [Trial(base, changes, num_test=MOST_TESTED) for _ in range(NUM_PROBES)]


def budget_for(
    config: Config,
    task: Task,
    tried: Sequence[Tried],
    timing: Timing,
    num_searches: int,
    seconds: float | None,
    num_processes: int,
) -> Budget:
    """The length of the longest runs.

    Args:
        config: What the user wants: their samples or epochs are not exceeded.
        task: What is learnt.
        tried: The probes.
        timing: Of the algorithm that is searched first.
        num_searches: How many algorithms are searched.
        seconds: What the plan may take.
        num_processes: How many there are to share the work.
    """
    num_train = len(samples_to_learn(task))
    num_test = min(MOST_TESTED, len(samples_to_test(task)))
    # Without a limit, the same plan on a machine that is busy today; with one, what fits the time.
    sample_s = min(
        (each.cpu_s if seconds is None else each.wall_s) / max(1, each.points[-1].samples if each.points else 1)
        for each in tried
    )
    available_s = USED * num_processes * (USUAL_S if seconds is None else seconds)
    affordable = available_s / sample_s / (RUNS_EACH * num_searches)
    per_update = timing.samples_per_update
    wanted = max(MOST_EPOCHS * num_train, LEAST_UPDATES * per_update)
    if config.samples is not None or config.epochs is not None:
        wanted = min(wanted, config.samples or (config.epochs or 0) * num_train)
    wanted = min(wanted, max(MOST_UPDATES * per_update, 4 * num_train))
    # Halved until it is affordable: a machine that is a little slower today makes the same plan.
    halvings = max(0, math.ceil(math.log2(wanted / affordable)))
    samples = round(wanted / 2**halvings)
    if samples < LEAST_UPDATES * per_update:
        why = (
            f"ranked by speed alone: {samples:,} samples are all that can be learnt from in the time, and an update "
            f"has {per_update:,.0f}; give more with --seconds"
        )
        return Budget(None, num_test, samples / num_train, why=why)
    return Budget(samples, num_test, samples / num_train)
