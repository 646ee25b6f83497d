"""`plan`: which algorithm to take on a fleet, at which learning rate, and what another fleet would change.

1. Speeds: every candidate is simulated in virtual time without gradients.
2. Learning: one of those that make the same updates as `sync` is searched first, at all learning rates. It shows which
   target can be reached, and sets the time after which the others are given up.
3. What if: speeds alone are simulated anew; what is known of learning is carried over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ownpace.core.contract.errors import InputError, Interrupted
from ownpace.core.learning.task import Task
from ownpace.core.settings import positive
from ownpace.fleet import Fleet, read_fleet
from ownpace.planning.budget import Budget, budget_for, probes
from ownpace.planning.candidates import candidates, with_same_updates
from ownpace.planning.deadlines import Deadlines
from ownpace.planning.driving import asked
from ownpace.planning.halving import octaves
from ownpace.planning.pool import Pool, open_pool
from ownpace.planning.progress import OnPlanProgress
from ownpace.planning.ranking import Known, finished_plan
from ownpace.planning.results import Plan
from ownpace.planning.stage_driver import StageDriver
from ownpace.planning.study import FINALISTS, Studied, Terms, confirmed, elsewhere, find_target, study, timed
from ownpace.planning.trial import as_asked, for_trials
from ownpace.planning.what_if import by_default, imagined
from ownpace.run import Config
from ownpace.run.config import default_fleet

GIVEN_UP = 1.5
"""An algorithm is given up when it has taken this many times as long as the first one that was searched."""
GIVEN_UP_ELSEWHERE = 4.0
"""On another fleet, when it has taken this many times as long as the choice on the fleet as it is."""
CLOSE = 1.3
"""What takes at most this many times as long as the first is run with more seeds."""
FIRST_GRID = {"sgd": (0.125, 4, 3)}
OTHER_GRID = (0.002, 4, 3)
"""Where the first search begins, and octaves below and above: of SGD, and of optimizers that scale their steps."""
LEARNING, BY_SPEED = "learning rates", "not searched, so all are ranked by speed alone"
MOST_ASKED = 4
"""Of the ranking, this many are timed on other fleets: another fleet may have another first."""


def plan(
    config: Config,
    fleet: Fleet | str | None = None,
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
            target, samples or epochs are taken where they are given.
        fleet: The machines (None: the configuration's).
        algorithms: Who takes part (None: those that are worth it).
        what_if: Questions such as `drop:old`, `add:new:2`, `bandwidth:x10` (None: the usual ones; empty: none).
        seconds: About how long it may take (None: about a minute on an idle machine).
        timing_only: Rank by samples/s alone, without any gradient.
        seeds: Each algorithm's best rate is run with all of them.
        processes: How many to use (None: one for each core; 1: this one).
        on_progress: Told how far it is.

    Raises:
        InputError: Something given cannot be used.
        Interrupted: Ctrl-C, before anything was known. Later, the plan holds what is known.

    >>> from ownpace.testing.blobs import Blobs
    >>> plan(Config(task=Blobs()), "4,1", timing_only=True, what_if=(), processes=1).ranking[0].share_of_limit > 0.9
    True
    """
    began = time.monotonic()
    planner = _Planner(config, fleet, algorithms, what_if, seconds, tuple(seeds), on_progress)
    with open_pool(planner.base, processes) as pool:
        try:
            planner.find_speeds(pool)
            if not timing_only:
                planner.learn(pool)
            planner.imagine(pool)
        except KeyboardInterrupt:
            planner.interrupt()
    return finished_plan(planner.known, time.monotonic() - began)


class _Planner:
    """One plan on its way."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet | str | None,
        algorithms: Sequence[str] | None,
        what_if: Sequence[str] | None,
        seconds: float | None,
        seeds: tuple[int, ...],
        on_progress: OnPlanProgress | None,
    ) -> None:
        began = time.monotonic()  # before data is read
        given = fleet if fleet is not None else config.fleet or default_fleet()
        machines = given if isinstance(given, Fleet) else read_fleet(given)
        if not machines.paced:
            raise InputError(
                "a machine of the fleet has no pace (samples_per_s), so nothing can be predicted; measure the machines "
                "with `ownpace measure`, or give paces, as in --fleet 4,2,1,1"
            )
        positive(seconds=seconds)
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds is {list(seeds)}; give at least one, each once")
        asked = by_default(machines) if what_if is None else what_if
        # Before anything runs: a question that cannot be understood is found at once.
        self._others = [imagined(machines, question) for question in asked]
        self.base = for_trials(config, machines)
        job = as_asked(self.base, config).job()
        self._job_task: Task = job.task
        self._own_lr = job.optimizer.lr  # of an optimizer that Python gave: it has a rate of its own
        self._seeds, self._seconds = seeds, seconds
        entered, left_out = candidates(machines, algorithms)
        self._candidates = {candidate.algorithm: candidate for candidate in entered}
        self.known = Known(config=replace(config, fleet=given), fleet=machines, left_out=left_out)
        self.known.candidates = self._candidates
        self.known.questions = tuple(other.name for other in self._others)
        self._deadlines = Deadlines(began, seconds, bool(self._others))
        self._driver = StageDriver(self.known.counts, self.known.uncertain, on_progress)

    def interrupt(self) -> None:
        """End with what is known by now."""
        if not self.known.timings:
            raise Interrupted("interrupted before anything was known") from None
        self.known.interrupted = True

    def find_speeds(self, pool: Pool) -> None:
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
        found = self._driver.drive("speeds", searches, pool, len(searches))
        for name, timing in found.items():
            if timing.samples_per_s > 0:
                self.known.timings[name] = timing
            else:
                self.known.left_out[name] = "it makes no update on this fleet"
                del self._candidates[name]

    def learn(self, pool: Pool) -> None:
        """Search learning rates, and take times to the target."""
        known = self.known
        first, others = self._order()
        budget = self._budget(pool, first, others)
        if budget.samples is None:
            known.uncertain.append(budget.why)
            return
        known.pilot, known.budget = first, budget
        level, by_loss = self._wanted()
        terms = Terms(level, budget.samples, None, self._seeds, budget.num_test, by_loss=by_loss, noise=True)
        total = budget.runs_each * (2 + len(others))
        pilot = self._search_first(pool, first, terms, total, self._deadlines.first_search)
        if pilot is None or pilot.level is None or pilot.mean_s is None:
            if not self._deadlines.is_past(self._deadlines.first_search):  # else that has been said
                known.uncertain.append(f"{first} learnt nothing in {budget.samples:,} samples: ranked by speed alone")
            return
        known.level = pilot.level
        limit = replace(terms, level=pilot.level, seconds=GIVEN_UP * pilot.mean_s, noise=False)
        num = len(known.fleet.workers)
        grids = {name: octaves(self._candidates[name].guess(pilot.lr, num), 2, 2) for name in others}
        if not isinstance(self.base.optimizer, str):
            grids = {name: [self._own_lr] for name in others}
        self._study(pool, dict.fromkeys(others, limit), grids, total, self._deadlines.searches)
        self._confirm(pool, limit, total, self._deadlines.more_seeds)

    def _confirm(self, pool: Pool, terms: Terms, total: int, deadline: float | None) -> None:
        """Run those that are close to the first with as many seeds again."""
        known, beyond = self.known, max(self._seeds) + 1
        again = replace(terms, seconds=None, seeds=tuple(range(beyond, beyond + len(self._seeds))))
        searches = {
            name: confirmed(self.base, self._candidates[name], known.studied[name], again)
            for name in known.close_to_first(CLOSE)
        }
        if len(searches) > 1:
            found = known.studied.__setitem__
            missed = "not run with more seeds"
            self._driver.drive(LEARNING, searches, pool, total, deadline=deadline, on_found=found, missed=missed)

    def _search_first(self, pool: Pool, first: str, terms: Terms, total: int, deadline: float | None) -> Studied | None:
        """The first search: to the target that is wanted, or to one that can be reached; None: the time was up, or
        there is none.
        """
        known, grid = self.known, self._first_grid()
        if terms.level is not None:
            pilot = self._study(pool, {first: terms}, {first: grid}, total, deadline, BY_SPEED).get(first)
            if pilot is None:
                return None
            if pilot.mean_s is not None:
                known.noise = pilot.noise
                return pilot
            known.uncertain.append(
                f"{first} was not at {terms.level:g} within {terms.samples:,} samples at any rate: times are those to "
                "a target that can be reached"
            )
        candidate, timing = self._candidates[first], known.timings[first]
        asks = find_target(self.base, candidate, timing, grid, replace(terms, level=None))
        target = self._driver.drive(LEARNING, {first: asks}, pool, total, deadline=deadline, missed=BY_SPEED).get(first)
        if target is None or target.level is None:
            return None
        known.noise = target.noise
        # Whatever gets there first has a higher rate than what gets furthest.
        grid = grid if len(grid) == 1 else octaves(target.lr, 1, 3)
        again = replace(terms, level=target.level, noise=False)
        return self._study(pool, {first: again}, {first: grid}, total, deadline, BY_SPEED).get(first)

    def imagine(self, pool: Pool) -> None:
        """See what other fleets would do, with the first of the ranking at rates near theirs."""
        known = self.known
        wanted = known.worth_asking(MOST_ASKED)
        first = known.ranking()[0]
        terms = None
        if known.level is not None and first.time_to_target is not None and known.budget and known.budget.samples:
            samples = known.budget.samples
            limit_s = GIVEN_UP_ELSEWHERE * first.time_to_target
            now = len(known.fleet.workers)
            num_test = known.budget.num_test
            by_loss = self._wanted()[1]
            terms = Terms(known.level, 2 * samples, limit_s, self._seeds, num_test, num_workers=now, by_loss=by_loss)
        searches, expected = {}, 0
        for other in self._others:
            num, now = len(other.fleet.workers), len(known.fleet.workers)
            factors = (
                (1.0,) if num == now or not isinstance(self.base.optimizer, str) else (1.0, 2.0 if num > now else 0.5)
            )
            base = replace(self.base, fleet=other.fleet)
            searches[other.name] = elsewhere(base, wanted, terms, factors, num)
            expected += len(wanted) + (0 if terms is None else FINALISTS * len(factors) * len(self._seeds))
        found = known.others.__setitem__
        self._driver.drive(
            "what if", searches, pool, expected, deadline=self._deadlines.end, on_found=found, missed="not answered"
        )

    def _order(self) -> tuple[str, list[str]]:
        """Whom to search first, and whom then; of those that make the same updates, the fastest stands for all."""
        timings = self.known.timings
        alike = with_same_updates(list(timings))
        first = max(alike, key=lambda name: timings[name].samples_per_s) if alike else next(iter(timings))
        return first, [name for name in timings if name != first and name not in alike]

    def _budget(self, pool: Pool, first: str, others: Sequence[str]) -> Budget:
        trials = probes(self.base, self._candidates[first], len(self.known.fleet.workers))
        tried = self._driver.drive(LEARNING, {"": asked(trials)}, pool, len(trials))[""]
        config, timing = self.known.config, self.known.timings[first]
        return budget_for(config, self._job_task, tried, timing, 1 + len(others), self._seconds, pool.num)

    def _wanted(self) -> tuple[float | None, bool]:
        """The target that was asked for, or the task's own, as a score; and whether that is a loss."""
        config, usual = self.known.config, self._job_task.defaults
        if config.target is None and config.target_loss is None:
            return (usual.target, False) if usual.target_loss is None else (-usual.target_loss, True)
        return (config.target, False) if config.target_loss is None else (-config.target_loss, True)

    def _first_grid(self) -> list[float]:
        if not isinstance(self.base.optimizer, str):
            return [self._own_lr]
        return octaves(*FIRST_GRID.get(self.base.optimizer, OTHER_GRID))

    def _study(
        self,
        pool: Pool,
        terms: Mapping[str, Terms],
        grids: Mapping[str, Sequence[float]],
        total: int,
        deadline: float | None,
        missed: str = "not searched",
    ) -> dict[str, Studied]:
        known = self.known
        searches = {
            name: study(self.base, self._candidates[name], known.timings[name], grids[name], terms[name])
            for name in terms
        }
        found = known.studied.__setitem__
        return self._driver.drive(LEARNING, searches, pool, total, deadline=deadline, on_found=found, missed=missed)
