"""The part of a plan in which algorithms learn: each at its own best rate, until they are at the target or given up.

It ends when the time is up, whatever is known by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count, islice

from ownpace.core.learning.task import Task
from ownpace.planning.budget import Budget, affordable, budget_for, probe, too_slow
from ownpace.planning.by_speed import by_trust
from ownpace.planning.candidates import with_same_updates
from ownpace.planning.deadlines import Deadlines
from ownpace.planning.driving import Asks, asked
from ownpace.planning.halving import octaves
from ownpace.planning.ranking import Known
from ownpace.planning.stage_driver import StageDriver
from ownpace.planning.study import FEW_ROUNDS, ROUNDS, Studied, Terms, confirmed, study
from ownpace.run import Config

GIVEN_UP = 1.5
"""An algorithm is given up when it has taken this many times as long as the first one that was searched."""
CLOSE = 1.3
"""What takes at most this many times as long as the first is run with more seeds."""
FIRST_GRID = {"sgd": (0.125, 4, 3)}
OTHER_GRID = (0.002, 4, 3)
"""Where the first search begins, and octaves below and above: of SGD, and of optimizers that scale their steps."""
SHORT_GRID = (2, 1)
"""Octaves below and above the task's own rate, where there is no time for more."""
STAGE, BY_SPEED = "learning rates", "no run came far enough, so all are ranked by speed alone"


@dataclass
class LearningStage:
    """Searches learning rates, and takes times to the target."""

    known: Known
    base: Config
    task: Task
    own_lr: float
    """The rate where none is searched for: a task's, or that of an optimizer that Python gave."""
    wanted: tuple[float | None, bool]
    """The score to be reached, if there is one, and whether that is a loss."""
    seeds: tuple[int, ...]
    stages: StageDriver
    deadlines: Deadlines
    usual_s: float | None
    """What it takes on an idle machine, if nobody said how long it may take."""

    def run(self) -> None:
        """Learn as much as there is time for."""
        known = self.known
        first, others = self._order()
        budget = self._budget(first, 1 + len(others))
        if budget.samples is None:
            known.uncertain.append(budget.why)
            return
        known.pilot, known.budget = first, budget
        total = budget.effort.trials_each * (1 + len(others))
        pilot = self._search_first(first, total)
        if pilot is None:
            return
        terms = replace(self._terms(budget), level=pilot.level, seconds=GIVEN_UP * pilot.mean_known_s)
        num = len(known.fleet.workers)
        beside = 2 if budget.effort.thorough else 1
        grids = {name: octaves(known.candidates[name].guess(pilot.lr, num), beside, beside) for name in others}
        if not isinstance(self.base.optimizer, str):
            grids = {name: [self.own_lr] for name in others}
        searches = {
            name: study(self.base, known.candidates[name], known.timings[name], grids[name], terms) for name in others
        }
        self._drive(searches, total, self.deadlines.searches)
        self._confirm(terms, total)

    def _order(self) -> tuple[str, list[str]]:
        """Whom to search first, and whom then, the most promising first; of those that make the same updates, the
        fastest stands for all.
        """
        timings = self.known.timings
        alike = with_same_updates(list(timings))
        first = max(alike, key=lambda name: timings[name].samples_per_s) if alike else by_trust(timings)[0]
        return first, [name for name in by_trust(timings) if name != first and name not in alike]

    def _budget(self, first: str, num_searches: int) -> Budget:
        """How long runs may be, after a short one in each process."""
        timing = self.known.timings[first]
        trials = [probe(self.base, self.known.candidates[first], timing) for _ in range(self.stages.pool.num)]
        deadline = self.deadlines.first_search
        probes = self.stages.drive("cost of a sample", {first: asked(trials)}, len(trials), deadline=deadline)
        left_s = self.deadlines.left_to_search_s
        spendable = affordable(probes.get(first, []), left_s, self.usual_s, self.stages.pool.num)
        if not spendable:
            return too_slow(timing.samples_per_update)
        seconds = self.stages.deadlines.seconds or 0.0
        return budget_for(self.known.config, self.task, spendable, timing, num_searches, seconds, left_s)

    def _terms(self, budget: Budget) -> Terms:
        level, by_loss = self.wanted
        assert budget.samples is not None
        return Terms(
            level,
            budget.samples,
            None,
            self.seeds if budget.effort.thorough else self.seeds[:1],
            budget.num_test,
            by_loss=by_loss,
            num_evaluations=budget.num_evaluations,
            parts=ROUNDS if budget.effort.thorough else FEW_ROUNDS,
        )

    def _search_first(self, first: str, total: int) -> Studied | None:
        """To the target that is wanted, or to one that can be reached; None: nothing was learnt."""
        known, budget = self.known, self.known.budget
        assert budget is not None
        terms = replace(self._terms(budget), noise=budget.effort.thorough)
        grid, level = self._first_grid(budget), terms.level
        asks = study(self.base, known.candidates[first], known.timings[first], grid, terms, finds_level=True)
        pilot = self._drive({first: asks}, total, self.deadlines.first_search, BY_SPEED).get(first)
        if pilot is None:  # that has been said
            return None
        if known.level is None:
            known.uncertain.append(f"{first} learnt nothing in {terms.samples:,} samples: ranked by speed alone")
            return None
        if level is not None and pilot.level != level:
            known.uncertain.append(
                f"{first} was not at {level:g} within {terms.samples:,} samples at any rate: times are those to a "
                "target that can be reached"
            )
        known.noise = pilot.noise
        return pilot

    def _first_grid(self, budget: Budget) -> list[float]:
        if not isinstance(self.base.optimizer, str):
            return [self.own_lr]
        if not budget.effort.thorough:
            return octaves(self.own_lr, *SHORT_GRID)
        return octaves(*FIRST_GRID.get(self.base.optimizer, OTHER_GRID))

    def _confirm(self, terms: Terms, total: int) -> None:
        """Run those that are close to the first with as many seeds again, or with all that were not run at once."""
        known = self.known
        more = self.seeds[len(terms.seeds) :] or tuple(islice(count(max(self.seeds) + 1), len(self.seeds)))
        again = replace(terms, seconds=None, seeds=more)
        close = known.close_to_first(CLOSE)
        if len(close) > 1:
            searches = {
                name: confirmed(self.base, known.candidates[name], known.studied[name], again) for name in close
            }
            self._drive(searches, total, self.deadlines.more_seeds, "not run with more seeds")

    def _drive(
        self,
        searches: Mapping[str, Asks[Studied]],
        total: int,
        deadline: float | None,
        missed: str = "not searched",
    ) -> dict[str, Studied]:
        found = self.known.studied.__setitem__
        return self.stages.drive(STAGE, searches, total, deadline=deadline, on_found=found, missed=missed)
