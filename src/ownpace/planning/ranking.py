"""From what is known to a plan: who is first, and what other fleets would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ownpace.fleet import Fleet
from ownpace.planning.budget import Budget
from ownpace.planning.by_speed import best_by_speed
from ownpace.planning.candidates import Candidate, with_same_updates
from ownpace.planning.command import command_for
from ownpace.planning.elsewhere import Elsewhere, Entrant
from ownpace.planning.noise import NoiseScale
from ownpace.planning.results import UNFINISHED, Choice, Plan, Ranked, WhatIf
from ownpace.planning.study import Studied
from ownpace.planning.timing import Timing
from ownpace.planning.words import uncertainties, verdict
from ownpace.run import Config

_SAME = "the same updates as {}, at another pace"


@dataclass
class Known:
    """All that a plan has found out so far."""

    config: Config
    """As it was given, but for the fleet, which may be a name."""
    fleet: Fleet
    left_out: dict[str, str]
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    studied: dict[str, Studied] = field(default_factory=dict)
    others: dict[str, Elsewhere] = field(default_factory=dict)
    """By question."""
    questions: tuple[str, ...] = ()
    noise: NoiseScale | None = None
    pilot: str | None = None
    """Who was searched first."""
    budget: Budget | None = None
    uncertain: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Runs, by stage."""
    interrupted: bool = False

    @property
    def level(self) -> float | None:
        """The target, once somebody has got there."""
        found = None if self.pilot is None else self.studied.get(self.pilot)
        return None if found is None or math.isinf(found.mean_known_s) else found.level

    def ranking(self) -> list[Ranked]:
        """The first in time first; then those that were given up; then those of whom only the speed is known."""
        rows = [self._row(name) for name in self.timings]
        return sorted(rows, key=self._place)

    def chosen(self) -> Ranked:
        """Whom to take: the first in time, or where nothing was learnt, by more than the speed."""
        ranking = self.ranking()
        if self.level is not None:
            return ranking[0]
        best = best_by_speed({row.algorithm: row.timing for row in ranking})
        return next(row for row in ranking if row.algorithm == best)

    def worth_asking(self, most: int) -> list[Entrant]:
        """Whom to try on other fleets, where another may be the first."""
        rows = [row for row in self.ranking() if row.time_to_target is not None][:most]
        if not rows:  # by speed alone, and the choice goes by more than that
            first = [row.algorithm for row in self.ranking()[: most - 1]]
            asked = {self.chosen().algorithm, *first, *with_same_updates([*self.timings])}
            rows = [row for row in self.ranking() if row.algorithm in asked]
        return [
            Entrant(self.candidates[row.algorithm], row.lr or 0.0, row.time_to_target or 0.0, row.spread, row.timing)
            for row in rows
        ]

    def close_to_first(self, times: float) -> list[str]:
        """Who was searched, and took at most this many times as long as the first, that one included."""
        known = {name: found.mean_known_s for name, found in self.studied.items() if found.level == self.level}
        return [name for name, seconds in known.items() if seconds <= times * min(known.values())]

    def _place(self, row: Ranked) -> tuple[float, float]:
        if row.time_to_target is not None:
            return 0.0, row.time_to_target
        return (1.0 if row.at_most_s is not None else 2.0), -row.samples_per_s

    def _row(self, name: str) -> Ranked:
        candidate, timing = self.candidates[name], self.timings[name]
        found = self.studied.get(name)
        row = Ranked(candidate.algorithm, candidate.parameters, None, None, None, timing)
        if self.level is None:
            return row
        if found is not None:
            mean_s = found.mean_s if found.level == self.level else None
            at_most_s = None if mean_s is not None else found.seconds
            note = "" if mean_s is not None else _not_there(found)
            row = replace(row, lr=found.lr, num_seeds=len(found.times), at_most_s=at_most_s, note=note)
            return replace(row, time_to_target=mean_s, spread=found.spread_s)
        alike = with_same_updates([*self.timings])
        if self.pilot in alike and name in alike:
            return self._scaled(row, self.studied[self.pilot], self.timings[self.pilot])
        return row

    def _scaled(self, row: Ranked, of: Studied, pilot: Timing) -> Ranked:
        """The time of one that makes the same updates, only at another pace."""
        slower = pilot.samples_per_s / row.samples_per_s
        mean_s = None if of.mean_s is None else of.mean_s * slower
        spread = None if of.spread_s is None else of.spread_s * slower
        row = replace(row, lr=of.lr, num_seeds=len(of.times), note=_SAME.format(self.pilot))
        return replace(row, time_to_target=mean_s, spread=spread)


def _not_there(found: Studied) -> str:
    if not found.times:
        return UNFINISHED
    reached = sum(time is not None for time in found.times)
    if reached:
        return f"there with {reached} of {len(found.times)} seeds"
    return "given up"


def finished_plan(known: Known, seconds: float) -> Plan:
    """The plan, from what is known."""
    ranking = tuple(known.ranking())
    timing_only = known.level is None
    first = known.chosen()
    config = known.config
    if known.level is not None:
        by_loss = known.level < 0
        target, loss = (None, -known.level) if by_loss else (known.level, None)
        config = replace(config, target=target, target_loss=loss)
    command = command_for(config, first.algorithm, first.parameters, first.lr)
    answers = {name: _answer(known.others[name], first) for name in known.questions if name in known.others}
    plan = Plan(
        choice=Choice(first.algorithm, first.parameters, first.lr, command),
        ranking=ranking,
        what_if=answers,
        verdict="",
        uncertain=(),
        left_out=known.left_out,
        target=known.level,
        noise_scale=None if known.noise is None else known.noise.samples,
        seconds=seconds,
        timing_only=timing_only,
        interrupted=known.interrupted,
        settings={
            "samples": known.budget and known.budget.samples,
            "epochs": known.budget and known.budget.epochs,
            "eval_every": known.budget and known.budget.eval_every,
            "runs": dict(known.counts),
            # Who was given up after one seed does not make the others' times less sure.
            "seeds": min((row.num_seeds for row in ranking if row.time_to_target is not None), default=0),
            "batch_size": known.config.batch_size,
            "workers": len(known.fleet.workers),
        },
    )
    said = verdict(plan, known.fleet)
    uncertain = (*known.uncertain, *uncertainties(plan, known.studied))
    return replace(plan, verdict=said, choice=replace(plan.choice, why=said.splitlines()[0]), uncertain=uncertain)


def _answer(found: Elsewhere, first: Ranked) -> WhatIf:
    rate = found.timing.samples_per_s
    if found.same_samples_per_s is not None:
        return WhatIf(found.algorithm, None, rate, found.same_samples_per_s / first.samples_per_s)
    gain = first.time_to_target / found.seconds if first.time_to_target and found.seconds else None
    return WhatIf(found.algorithm, found.seconds, rate, gain, found.spread_s, found.is_guess)
