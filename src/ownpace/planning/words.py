"""A plan in words: the verdict, and what is uncertain."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ownpace.fleet import Fleet
from ownpace.planning.candidates import SAME_UPDATES
from ownpace.planning.results import UNFINISHED, Plan, Ranked, WhatIf
from ownpace.planning.study import Studied
from ownpace.planning.what_if import num_workers

ONE_GRADIENT = (*SAME_UPDATES, "pace", "acco", "abs", "pipe", "od", "backup", "grouping", "async", "stale")
"""Whose updates are one gradient each."""
LITTLE = 0.05
"""What changes times by less than this is not worth the trouble."""
SURE = 2.0
"""Standard errors between two means that are told apart."""
ONE_SEED = 0.2
"""By how much the time of a single seed may be off."""
LEVEL = 0.1
"""Predicted times that differ by less than this are not told apart."""


def verdict(plan: Plan, fleet: Fleet) -> str:
    """What to do, the first line the most important."""
    lines = [_first(plan)]
    if (second := _second(plan)) is not None:
        lines.append(second)
    unknown = [row.algorithm for row in plan.ranking if row.time_to_target is None and _is_open(row)]
    if unknown and not plan.timing_only:
        lines.append(f"{_listed(unknown)} may be better: there was no time to see.")
    lines += [line for name, answer in plan.what_if.items() if (line := _answer(name, answer, plan, fleet))]
    if plan.noise_scale is not None and 2 <= plan.noise_scale < math.inf:
        said = f"Near the target, updates of more than about {_round(plan.noise_scale):,} samples stop paying"
        # A round of local steps is no update of that kind: each of its steps is.
        if plan.choice.algorithm in ONE_GRADIENT:
            said += f"; those of {plan.choice.algorithm} have {chosen_row(plan).samples_per_update:,.0f}"
        lines.append(f"{said}.")
    return "\n".join(lines)


def _first(plan: Plan) -> str:
    choice, chosen = plan.choice, chosen_row(plan)
    sync = next((row for row in plan.ranking if row.algorithm == "sync"), None)
    if chosen.time_to_target is None:
        said = f"Take {choice.algorithm}: {chosen.samples_per_s:,.0f} samples/s"
        said += f", {chosen.share_of_limit:.0%} of the limit"
        if sync is not None and sync is not chosen:
            said += f", {_times(chosen.samples_per_s / sync.samples_per_s)} sync"
        return said + ". By speed alone; how well it learns was not tried."
    said = f"Take {choice.algorithm} with learning rate {choice.lr:g}: {target_text(plan.target)} in about "
    said += seconds_text(chosen.time_to_target)
    if sync is not None and sync is not chosen and sync.time_to_target is not None:
        said += f", {_times(sync.time_to_target / chosen.time_to_target)} as soon as sync"
    return said + "."


def _is_open(row: Ranked) -> bool:
    """Whether there was no time to see what becomes of it."""
    return row.at_most_s is None or row.note == UNFINISHED


def chosen_row(plan: Plan) -> Ranked:
    """The row of the choice."""
    return next(row for row in plan.ranking if row.algorithm == plan.choice.algorithm)


def _second(plan: Plan) -> str | None:
    """Who cannot be told from the first."""
    first = chosen_row(plan)
    if first.time_to_target is None:
        return None
    close = []
    for row in plan.ranking:
        if row is first or row.time_to_target is None:
            continue
        apart = row.time_to_target - first.time_to_target
        if apart < max(LEVEL * first.time_to_target, SURE * math.hypot(_error(first), _error(row))):
            close.append(row.algorithm)
    if not close:
        return None
    return f"{_listed(close)} cannot be told from it: within a tenth, or what chance explains."


def _error(row: Ranked) -> float:
    """The standard error of a mean over seeds."""
    return 0.0 if row.spread is None else row.spread / math.sqrt(row.num_seeds)


def _answer(name: str, answer: WhatIf, plan: Plan, fleet: Fleet) -> str:
    """One sentence for a question."""
    kind, _, rest = name.partition(":")
    gain = answer.gain or 0.0
    by_speed = chosen_row(plan).time_to_target is None
    change = _change(gain, "samples/s" if by_speed else "time")
    then = _then(answer, plan) if by_speed else ""
    if not by_speed and answer.algorithm != plan.choice.algorithm:
        change += f", with {answer.algorithm}"
    if answer.is_guess:
        change += ", by speed alone"
    is_chance = abs(gain - 1) < _chance(kind, answer, plan)
    if is_chance and abs(gain - 1) >= LITTLE:
        change += "; that may be chance"
    if kind == "drop":
        # Of two classes either of which may go, hardly ever both may: what is left would be another fleet.
        is_best = all(gain >= (each.gain or 0.0) for key, each in plan.what_if.items() if key.startswith("drop:"))
        return f"{_dropped(rest, 1.0 if is_chance else gain, change, fleet, is_best=is_best)}{then}."
    subject = {
        "add": lambda: f"{rest.rpartition(':')[2]} more of {rest.rpartition(':')[0]}",
        "network": lambda: f"{_times_text(rest)} the network",
        "bandwidth": lambda: f"{_times_text(rest)} the bandwidth",
        "latency": lambda: f"{_times_text(rest)} the latency",
    }[kind]()
    subject = subject[0].upper() + subject[1:]
    said = f"not worth it ({change})" if abs(gain - 1) < LITTLE else change
    return f"{subject}: {said}{then}."


def _then(answer: WhatIf, plan: Plan) -> str:
    """Another choice on that fleet: the change is that of the choice, since speeds of two say nothing of a fleet."""
    if answer.algorithm == plan.choice.algorithm:
        return ""
    same = (answer.gain or 0.0) * chosen_row(plan).samples_per_s
    which = f"{answer.algorithm} is enough" if answer.samples_per_s <= same else f"take {answer.algorithm}"
    return f"; then {which} ({answer.samples_per_s:,.0f} samples/s)"


def _chance(kind: str, answer: WhatIf, plan: Plan) -> float:
    """How far apart two means over seeds may be by chance: a standard error of their difference, as a share."""
    first, num = chosen_row(plan), plan.settings.get("seeds")
    if not first.time_to_target or answer.time_to_target is None or answer.is_guess:
        return 0.0
    if first.spread is None or answer.spread is None or not isinstance(num, int):
        # On another network, the same runs go at another speed: that is no chance.
        return ONE_SEED if kind in ("drop", "add") else 0.0
    return math.sqrt((first.spread**2 + answer.spread**2) / num) / first.time_to_target


def _dropped(name: str, gain: float, change: str, fleet: Fleet, *, is_best: bool) -> str:
    try:
        count = num_workers(fleet, name)
    except KeyError:  # a name that stands for several classes
        count = 0
    machines = f"{name} ({count} {'machine' if count == 1 else 'machines'})" if count else name
    if gain > 1 + LITTLE:
        return f"{'Leave out' if is_best else 'Or leave out'} {machines}: without, {change}"
    if gain > 1 - LITTLE:
        return f"{machines} may stay or go: without, {change}"
    return f"Keep {machines}: without, {change}"


def _change(gain: float, what: str) -> str:
    """How much sooner or later, or how many more or fewer samples/s."""
    if what == "samples/s":
        return f"{abs(gain - 1):.0%} {'more' if gain >= 1 else 'fewer'} samples/s"
    if not gain:
        return "several times as long"
    share = 1 / gain - 1
    return f"{abs(share):.0%} {'less' if share <= 0 else 'more'} time"


def uncertainties(plan: Plan, studied: Mapping[str, Studied]) -> list[str]:
    """What the reader should not rely on."""
    said = []
    edges = sorted(name for name, found in studied.items() if found.at_edge)
    if edges:
        said.append(f"the best learning rate of {_listed(edges)} is at the edge of what was tried")
    some = [row for row in plan.ranking if row.note.startswith("there with")]
    said += [f"{row.algorithm} was {row.note}" for row in some]
    if plan.interrupted:
        said.append("interrupted: the plan holds what was known by then")
    if plan.timing_only:
        said.append("samples/s say nothing of how well an algorithm learns from them")
    elif plan.settings.get("samples"):
        samples, epochs, every = (plan.settings[name] for name in ("samples", "epochs", "eval_every"))
        tried = f"learning was tried with runs of up to {samples:,} samples ({epochs:.2g} epochs), constant rates"
        said.append(f"{tried}; tested every {every:,} samples: who tests less often sees the target later")
        if once := [row.algorithm for row in plan.ranking if row.num_seeds == 1 and row.time_to_target is not None]:
            said.append(f"only one seed was run of {_listed(once)}: between close ones, chance may decide")
    if any(answer.time_to_target is not None for answer in plan.what_if.values()):
        said.append("for other fleets, only the first algorithms were tried, at rates near those found here")
    return said


def target_text(target: float | None) -> str:
    """An accuracy, or a loss."""
    if target is None:
        return "–"
    return f"{100 * target:g} %" if target > 0 else f"a loss of {-target:.3g}"


def seconds_text(seconds: float) -> str:
    """A time for people to read.

    >>> seconds_text(1.234), seconds_text(130), seconds_text(9000)
    ('1.23 s', '130 s', '2.5 h')
    """
    if seconds >= 7200:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:.0f} times"


def _times_text(factor: str) -> str:
    return f"{factor.removeprefix('x')} times"


def _round(value: float) -> int:
    """Two digits: it is an estimate."""
    digits = max(0, math.floor(math.log10(value)) - 1) if value >= 1 else 0
    return max(1, int(round(value / 10.0**digits) * 10**digits))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
