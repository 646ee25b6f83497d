"""What came out of one run, or of several, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ownpace.report.advice import advice, said_once
from ownpace.report.page.words import count, duration, goal, listing, percent
from ownpace.report.summary import Summary

_FEW_UPDATES, _MOST_DOUBTS = 50, 8
Compared = tuple[str, Summary, Mapping[str, object]]
"""A run's name, what came out, and its settings."""


@dataclass(frozen=True)
class Contender:
    """Runs that differ in their seeds alone."""

    name: str
    summaries: Sequence[Summary]

    @property
    def time(self) -> float | None:
        """To the target; None if a run missed it: a mean over the others would hide that."""
        times = [each.time_to_target for each in self.summaries]
        return None if None in times else fmean(time for time in times if time is not None)

    @property
    def spread(self) -> str:
        """Of the times, over seeds."""
        times = [each.time_to_target for each in self.summaries if each.time_to_target is not None]
        return f" (± {duration(stdev(times))} over {len(times)} seeds)" if len(times) > 1 else ""

    @property
    def accuracy(self) -> float | None:
        """At the end."""
        return _mean([each.accuracy for each in self.summaries])

    @property
    def loss(self) -> float | None:
        """At the end."""
        return _mean([each.loss for each in self.summaries])

    @property
    def rate(self) -> float:
        """In samples per second."""
        return fmean(each.samples_per_s for each in self.summaries)


def verdict(runs: Sequence[Compared]) -> tuple[str, list[str]]:
    """One sentence, and what else is to be said."""
    if len(runs) == 1:
        ((name, summary, _),) = runs
        return _alone(name, summary), [*_about(name, summary), *_doubts(runs)]
    engines = {summary.engine for _, summary, _ in runs}
    # Of a prediction and its measurement, the measurement counts.
    real = [each for each in runs if len(engines) == 1 or each[1].engine != "virtual"]
    first, more = _compared(contenders(real))
    predictions = _predictions(runs) if len(engines) > 1 else []
    return first, [*more, *predictions, *_doubts(runs)]


def contenders(runs: Sequence[Compared]) -> list[Contender]:
    """The runs, those that differ in seeds alone together."""
    found: dict[str, list[tuple[str, Summary]]] = {}
    for name, summary, settings in runs:
        rest = sorted((key, repr(value)) for key, value in settings.items() if key != "seed")
        key = repr((summary.algorithm, summary.engine, rest or name))
        found.setdefault(key, []).append((name, summary))
    return [
        Contender(group[0][0] if len(group) == 1 else group[0][1].algorithm, [summary for _, summary in group])
        for group in found.values()
    ]


def _alone(name: str, summary: Summary) -> str:
    target = goal(summary)
    if target is not None and summary.time_to_target is not None:
        return f"{name} reached {target} after {duration(summary.time_to_target)}"
    score = _score(summary.accuracy if summary.target_loss is None else None, summary.loss)
    if target is not None:
        return f"{name} did not reach {target}{score and f': it came to {score}'}"
    return (
        f"{name} came to {score} in {duration(summary.seconds)}"
        if score
        else (f"{name} made {count(summary.updates)} updates in {duration(summary.seconds)}")
    )


def _score(accuracy: float | None, loss: float | None) -> str:
    if accuracy is not None:
        return percent(accuracy, 1)
    return "" if loss is None else f"a loss of {loss:.4g}"


def _about(name: str, summary: Summary) -> list[str]:
    clock = "of virtual time" if summary.engine == "virtual" else "on the clock"
    lines = [
        f"{count(summary.samples)} samples in {count(summary.updates)} updates, {duration(summary.seconds)} {clock}: "
        f"{count(summary.samples_per_s)} samples/s, {percent(summary.share_of_limit)} of what its machines would do "
        "alone and without a pause."
    ]
    if len(summary.busy) > 1:
        least = min(summary.busy, key=lambda worker: summary.busy[worker])
        lines.append(f"The least busy worker, {least}, computed {percent(summary.busy[least])} of its time.")
    return lines


def _compared(found: Sequence[Contender]) -> tuple[str, list[str]]:
    tasks = {(each.summaries[0].task, goal(each.summaries[0])) for each in found}
    if len(tasks) > 1:
        return f"{len(found)} runs with different tasks or targets", ["So none of them is called the first."]
    if len(found) == 1:
        (name, summaries) = found[0].name, found[0].summaries
        return f"{_alone(name, summaries[0])}, with the first of {len(summaries)} seeds", []
    target = goal(found[0].summaries[0])
    timed = sorted((each.time, each.name, each) for each in found if each.time is not None)
    if target is None or not timed:
        return _by_score(found, target)
    return _by_time([(time, each) for time, _, each in timed], found, target)


def _by_time(
    timed: Sequence[tuple[float, Contender]], found: Sequence[Contender], target: str
) -> tuple[str, list[str]]:
    time, first = timed[0]
    headline = f"{first.name} is first to {target}: after {duration(time)}{first.spread}"
    lines = []
    if len(timed) > 1:
        slower = [f"{each.name} took {later / time:.2g} times as long ({duration(later)})" for later, each in timed[1:]]
        lines.append(f"{listing(slower)}.")
    missed = [each.name for each in found if each.time is None]
    if missed:
        lines.append(f"{listing(missed)} did not reach it.")
    return headline, lines


def _by_score(found: Sequence[Contender], target: str | None) -> tuple[str, list[str]]:
    missed = "" if target is None else f"None reached {target}; "
    scored = [(each.accuracy, each) for each in found if each.accuracy is not None]
    fastest = max(found, key=lambda each: each.rate)
    speed = f"{fastest.name} is the fastest, with {count(fastest.rate)} samples/s."
    if scored:
        best, first = max(scored, key=lambda pair: pair[0])
        return f"{missed}{first.name} came furthest: {percent(best, 1)}", [speed]
    losses = [(each.loss, each) for each in found if each.loss is not None]
    if losses:
        low, first = min(losses, key=lambda pair: pair[0])
        return f"{missed}{first.name} came furthest: a loss of {low:.4g}", [speed]
    return speed.rstrip("."), []


def _predictions(runs: Sequence[Compared]) -> list[str]:
    rates = {(summary.algorithm, summary.engine): summary.samples_per_s for _, summary, _ in runs}
    off = [
        abs(rates[algorithm, "virtual"] / rate - 1)
        for (algorithm, engine), rate in rates.items()
        if engine != "virtual" and rate and (algorithm, "virtual") in rates
    ]
    return [f"Samples per second were predicted within {percent(max(off))}."] if off else []


def _doubts(runs: Sequence[Compared]) -> list[str]:
    """What a friend would add."""
    said = []
    for name, summary, _ in runs:
        if summary.reason != "finished":
            said.append((name, f"ended early, {summary.reason[:200]}"))
            continue
        if summary.updates < _FEW_UPDATES and summary.loss is not None:
            said.append((name, f"{count(summary.updates)} updates are too few to say much about it"))
        said += [(name, line) for line in advice(summary)]
    lines = [f"{line}." for line in said_once(said)]
    left_out = len(lines) - _MOST_DOUBTS
    return lines if left_out <= 0 else [*lines[:_MOST_DOUBTS], f"And {left_out} more remarks of this kind."]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
