"""`plan`: which algorithm to take on a fleet, at which learning rate, and what another fleet would change.

1. Speeds: every candidate is simulated in virtual time without gradients.
2. Learning: one of those that make the same updates as `sync` is searched first, at all learning rates. It shows which
   target can be reached, and sets the time after which the others are given up.
3. What if: speeds alone are simulated anew; what is known of learning is carried over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ownpace.core.contract.errors import InputError, Interrupted, shown
from ownpace.core.learning.task import Task
from ownpace.core.settings import positive
from ownpace.fleet import Fleet
from ownpace.planning.candidates import MANY_WORKERS, candidates
from ownpace.planning.deadlines import USUAL_S, Deadlines
from ownpace.planning.elsewhere import by_speed_elsewhere, elsewhere, speeds_elsewhere
from ownpace.planning.learning import LearningStage
from ownpace.planning.pool import Here, open_pool
from ownpace.planning.progress import OnPlanProgress
from ownpace.planning.ranking import Known, finished_plan
from ownpace.planning.results import Plan
from ownpace.planning.stage_driver import StageDriver
from ownpace.planning.study import FINALISTS, Terms, timed
from ownpace.planning.trial import as_asked, for_trials
from ownpace.planning.what_if import NONE, by_default, imagined
from ownpace.run import Config

GIVEN_UP_ELSEWHERE = 4.0
"""On another fleet, when it has taken this many times as long as the choice on the fleet as it is."""
MOST_ASKED = 4
"""Of the ranking, this many are timed on other fleets: another fleet may have another first."""


def plan(
    config: Config | Task | str,
    fleet: Fleet | str | Sequence[float] | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    what_if: Sequence[str] | None = None,
    seconds: float | None = None,
    timing_only: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    processes: int | None = None,
    on_progress: OnPlanProgress | None = None,
) -> Plan:
    """Say which algorithm to take on a fleet, with what gain, and what would help.

    Args:
        config: The task, the optimizer and batch sizes. Its algorithm and learning rate are what is looked for; its
            target, samples or epochs are taken where they are given. A task, or the name of one, will do.
        fleet: The machines (None: the configuration's).
        algorithms: Who takes part (None: those that are worth it).
        what_if: Questions such as `drop:old`, `add:new:2`, `bandwidth:x10` (None: the usual ones; empty: none).
        seconds: How long it may take (None: about a minute on an idle machine, two at most; with `timing_only`, and
            with large fleets, more). When the time is up, the plan holds what is known.
        timing_only: Rank by samples/s alone, without any gradient.
        seeds: Each algorithm's best rate is run with all of them.
        processes: How many to use (None: one for each core, 16 at most; 1: this one).
        on_progress: Told how far it is.

    Raises:
        InputError: Something given cannot be used.
        Interrupted: Ctrl-C, before anything was known. Later, the plan holds what is known.

    >>> from ownpace.testing.blobs import Blobs
    >>> plan(Config(task=Blobs()), "4,1", timing_only=True, what_if=(), processes=1).ranking[0].share_of_limit > 0.9
    True
    """
    began = time.monotonic()  # before data is read
    positive(seconds=seconds)
    planner = _Planner(_config(config), fleet, algorithms, what_if, tuple(seeds))
    deadlines = Deadlines.of(began, seconds, planner.known.fleet, asks=bool(planner.others), timing_only=timing_only)
    known = planner.known
    with open_pool(planner.base, processes) as pool:
        stages = StageDriver(pool, deadlines, known.counts, known.uncertain, on_progress)
        planner.run(stages, USUAL_S if seconds is None else None, learns=not timing_only)
    return finished_plan(known, time.monotonic() - began)


def _config(given: object) -> Config:
    if isinstance(given, Config):
        return given
    if isinstance(given, str | Task):
        return Config(task=given)
    raise InputError(f"plan was given {shown(given)}; give it a task, the name of one, or an ownpace.Config")


class _Planner:
    """One plan on its way."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet | str | Sequence[float] | None,
        algorithms: Sequence[str] | None,
        what_if: Sequence[str] | None,
        seeds: tuple[int, ...],
    ) -> None:
        if fleet is not None:
            config = replace(config, fleet=fleet)
        machines = config.machines()
        if not machines.paced:
            raise InputError(
                "a machine of the fleet has no pace (samples_per_s), so nothing can be predicted; measure the machines "
                "with `ownpace measure`, or give paces, as in --fleet 4,2,1,1"
            )
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds is {list(seeds)}; give at least one, each once")
        asked = by_default(machines) if what_if is None else [] if list(what_if) == [NONE] else what_if
        # Before anything runs: a question that cannot be understood is found at once.
        self.others = [imagined(machines, question) for question in asked]
        self.base = for_trials(config, machines)
        job = as_asked(self.base, config).job()
        self._job_task: Task = job.task
        self._own_lr = job.optimizer.lr
        self._seeds = seeds
        entered, left_out = candidates(machines, algorithms)
        self._candidates = {candidate.algorithm: candidate for candidate in entered}
        self.known = Known(config=config, fleet=machines, left_out=left_out)
        self.known.candidates = self._candidates
        self.known.questions = tuple(other.name for other in self.others)

    def run(self, stages: StageDriver, usual_s: float | None, *, learns: bool) -> None:
        """All stages; Ctrl-C ends them with what is known by then."""
        try:
            self.find_speeds(stages)
            if learns:
                self.learn(stages, usual_s)
            self.imagine(stages)
        except KeyboardInterrupt:
            if not self.known.timings:
                raise Interrupted("interrupted before anything was known") from None
            self.known.interrupted = True

    def find_speeds(self, stages: StageDriver) -> None:
        """Simulate time alone."""
        num = len(self.known.fleet.workers)
        for name, candidate in list(self._candidates.items()):
            try:
                # One that cannot run on this fleet, or with this optimizer, says so when its job is made.
                replace(self.base, algorithm=candidate.algorithm, parameters=dict(candidate.parameters)).job()
            except InputError as error:
                if len(self._candidates) == 1:
                    raise
                self.known.left_out[name] = str(error)
                del self._candidates[name]
        searches = {name: timed(self.base, candidate, num) for name, candidate in self._candidates.items()}
        # Right here, while the others start: with few workers it takes less than that.
        pool = Here() if num <= MANY_WORKERS else stages.pool
        deadline, missed = stages.deadlines.more_seeds, "not simulated"
        found = stages.drive("speeds", searches, len(searches), deadline=deadline, missed=missed, pool=pool)
        for name, timing in found.items():
            if timing.samples_per_s > 0:
                self.known.timings[name] = timing
            else:
                self.known.left_out[name] = "it makes no update on this fleet"
                del self._candidates[name]
        if not self.known.timings:
            raise InputError("the time was up before anything was known; give more with --seconds")

    def learn(self, stages: StageDriver, usual_s: float | None) -> None:
        """Search learning rates, and take times to the target.

        Args:
            stages: What drives it.
            usual_s: That a plan takes on an idle machine (None: all the time there is).
        """
        wanted, deadlines = self._wanted(), stages.deadlines.from_now()
        learning = LearningStage(
            self.known, self.base, self._job_task, self._own_lr, wanted, self._seeds, stages, deadlines, usual_s
        )
        learning.run()

    def imagine(self, stages: StageDriver) -> None:
        """See what other fleets would do, with the first of the ranking at rates near theirs."""
        known, wanted, terms = self.known, self.known.worth_asking(MOST_ASKED), self._terms_elsewhere()
        stage, deadline = "what if", stages.deadlines.end
        bases = {other.name: replace(self.base, fleet=other.fleet) for other in self.others}
        sizes = {other.name: len(other.fleet.workers) for other in self.others}
        asks = {name: speeds_elsewhere(base, wanted, sizes[name]) for name, base in bases.items()}
        expected = len(asks) * len(wanted)
        speeds = stages.drive(stage, asks, expected, deadline=deadline, missed="not answered")
        now, chosen, searches = len(known.fleet.workers), known.chosen().algorithm, {}
        # An answer by speed first, so that there is one for each question, whatever becomes of the others.
        for name, found in speeds.items():
            alike = sizes[name] == now
            known.others[name] = by_speed_elsewhere(wanted, found, terms, chosen=chosen, same_workers=alike)
            if terms is not None and known.others[name].is_guess:
                factors = self._factors(sizes[name], now)
                searches[name] = elsewhere(bases[name], wanted, found, terms, factors)
                expected += FINALISTS * len(factors) * len(terms.seeds)
        missed = "answered by speed alone"
        found_one = known.others.__setitem__
        stages.drive(stage, searches, expected, deadline=deadline, on_found=found_one, missed=missed)

    def _factors(self, num: int, now: int) -> tuple[float, ...]:
        """Of learning rates, where there are so many workers and not as many as now."""
        if num == now or not isinstance(self.base.optimizer, str):
            return (1.0,)
        return (1.0, 2.0 if num > now else 0.5)

    def _terms_elsewhere(self) -> Terms | None:
        """What is asked of algorithms on other fleets; None: only how fast they are."""
        known, budget, first = self.known, self.known.budget, self.known.ranking()[0]
        if known.level is None or first.time_to_target is None or budget is None or budget.samples is None:
            return None
        return Terms(
            known.level,
            2 * budget.samples,
            GIVEN_UP_ELSEWHERE * first.time_to_target,
            self._seeds if budget.effort.thorough else self._seeds[:1],
            budget.num_test,
            by_loss=self._wanted()[1],
            num_evaluations=2 * budget.num_evaluations,
        )

    def _wanted(self) -> tuple[float | None, bool]:
        """The target that was asked for, or the task's own, as a score; and whether that is a loss."""
        config, usual = self.known.config, self._job_task.defaults
        if config.target is None and config.target_loss is None:
            return (usual.target, False) if usual.target_loss is None else (-usual.target_loss, True)
        return (config.target, False) if config.target_loss is None else (-config.target_loss, True)
