"""docs/results/claims.md, its details and its figures, out of the runs that were made."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from claims import shown
from claims.race import Race, ScheduledRace, lead
from claims.running import HERE, Runner, describe
from ownpace.fleet import PRESETS

RESULTS = HERE / "docs" / "results"
IMAGES = HERE / "docs" / "images" / "claims"
WORDS = HERE / "benchmarks" / "claims" / "words"
"""What people have to say about the numbers, one file for each section."""


def write(runner: Runner) -> None:
    """Write both pages; what was not run is said to be missing."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    numbers = {}
    for name, make in SECTIONS.items():
        try:
            numbers[name] = make(runner)
        except KeyError:
            numbers[name] = ["Not run here yet: `make claims`."]
    (RESULTS / "claims.md").write_text(_words("verdicts") + "\n", encoding="utf-8")
    (RESULTS / "claims-details.md").write_text(details(numbers), encoding="utf-8")


def details(numbers: Mapping[str, Sequence[str]]) -> str:
    """The page with all sections: what there is to say, then the numbers."""
    parts = [_words("head")]
    for name, lines in numbers.items():
        parts += [_words(name), "\n".join(lines).rstrip()]
    return "\n\n".join([*parts, _words("foot")]) + "\n"


def _words(name: str) -> str:
    return (WORDS / f"{name}.md").read_text(encoding="utf-8").rstrip()


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]


def grouping(runner: Runner) -> list[str]:
    lines = []
    for task, momentum in (("mnist", 0.0), ("mnist", 0.9), ("cifar10", 0.9), ("cifar10", 0.0)):
        race = shown.grouping(task, momentum)
        lines += [*_race(race, runner, "grouping"), ""]
    return lines


def _race(race: Race, runner: Runner, ours: str) -> list[str]:
    try:
        return race.table(runner, ours)
    except KeyError:
        return [f"{race.name}: not run here yet."]


def wp(runner: Runner) -> list[str]:
    rules = ("exp", "equal", "count", "optimal")
    rows, curves = [], {rule: [] for rule in rules}
    for steps in shown.WP_STEPS:
        means = {}
        for rule in rules:
            means[rule] = statistics.mean(runner.of(shown.wp(rule, steps, seed)).objective or 0.0 for seed in range(5))
            curves[rule].append(means[rule])
        time = runner.of(shown.wp("exp", steps, 0)).seconds
        best = "exp" if means["exp"] < means["equal"] else "equal"
        rows.append((str(steps), f"{time:.2f}", *(f"{means[rule]:.5f}" for rule in rules), best))
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axis = figure.subplots()
    for rule, values in curves.items():
        axis.plot(shown.WP_STEPS, values, "o-", label=f"{rule} (SimuParallel)" if rule == "equal" else rule)
    axis.set(xscale="log", xlabel="steps of the fastest node", ylabel="objective")
    axis.legend(frameon=False)
    figure.savefig(IMAGES / "wp.png", dpi=120)
    heads = ("T", "seconds", "`exp`", "`equal` (SimuParallel)", "`count`", "`optimal`", "lower of exp and equal")
    return [*_table(heads, rows), "", "![Objective over the steps of the fastest node](../images/claims/wp.png)"]


def od(runner: Runner) -> list[str]:
    lines = []
    for task in ("mnist", "cifar10"):
        rows = []
        for ratio in shown.OD_RATIOS[task]:
            for label, way in shown.OD_WAYS.items():
                lr = shown.best_od_lr(runner, task, ratio, way)
                outcome = runner.of(shown.od(task, ratio, way, lr))
                rate, accuracy = f"{outcome.samples_per_s:,.0f}", f"{100 * outcome.final():.2f} %"
                rows.append((f"{ratio:g}", f"`{label}`", f"{lr:g}", rate, accuracy))
        lines += [*_table((f"{task}: C / compute", "way", "best lr", "samples/s", "final accuracy"), rows), ""]
    return lines


def layered(runner: Runner) -> list[str]:
    rows = []
    for ratio in shown.IO_RATIOS:
        sync, ours = (runner.of(shown.layered(way, 16, ratio, timing_only=False)) for way in ("sync", "layered"))
        apart = max(abs((a[3] or 0) - (b[3] or 0)) for a, b in zip(sync.curve, ours.curve, strict=True))
        rows.append((f"{ratio:g}", f"{sync.seconds:.2f}", f"{ours.seconds:.2f}", f"{apart:.1e}"))
    lines = _table(("I/O over all-reduce", "`sync`, s", "`layered`, s", "largest difference of test losses"), rows)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    rows = []
    for axis, ratio in zip(figure.subplots(1, len(shown.IO_RATIOS), sharey=True), shown.IO_RATIOS, strict=True):
        for way in ("sync", "layered"):
            shares = [
                runner.of(shown.layered(way, count, ratio, timing_only=True)).samples_per_s / (2000 * count)
                for count in shown.NUM_WORKERS
            ]
            axis.plot(shown.NUM_WORKERS, shares, "o-", label="flat all-reduce" if way == "sync" else "layered")
            rows.append((f"{ratio:g}", f"`{way}`", *(f"{share:.2f}" for share in shares)))
        axis.set(xscale="log", xlabel="workers", title=f"I/O = {ratio:g} × all-reduce", ylim=(0, 1))
    figure.axes[0].set_ylabel("share of computing alone")
    figure.axes[0].legend(frameon=False)
    figure.savefig(IMAGES / "layered.png", dpi=120)
    counts = [str(count) for count in shown.NUM_WORKERS]
    scaling = "![Efficiency over the number of workers](../images/claims/layered.png)"
    return [*lines, "", *_table(("I/O", "workers:", *counts), rows), "", scaling]


def abs_(runner: Runner) -> list[str]:
    lines = []
    ways_of = {"mnist": ("abs", "abs, equal-time", shown.FINE_ABS), "cifar10": (shown.FINE_ABS,)}
    for task, ways in ways_of.items():
        level = shown.LEVELS[task][0]
        leads = []
        for fleet in shown.HEADLINE:
            race = shown.papers_race(task, fleet)
            table = _race(race, runner, shown.FINE_ABS)
            lines += [*table, ""]
            if len(table) > 1:
                leads.append([lead(race.times(runner, level), way, ("sync", "async", "stale")) for way in ways])
        for way, each in zip(ways, zip(*leads, strict=True), strict=True):
            what = f"`{way}` over the best of sync, async and stale, {task}, to {100 * level:g} %"
            lines += [_average(what, each), ""]
    return lines


def _average(what: str, leads: Sequence[float | None]) -> str:
    known = [value for value in leads if value is not None]
    if not known:
        return f"{what}: not shown."
    each = ", ".join(describe(value) for value in leads)
    return textwrap.fill(f"**{what}: {each}; on average {statistics.mean(known):.2f}×.**", 124)


def pace(runner: Runner) -> list[str]:
    lines = []
    for optimizer in ("sgd", "adamw"):
        races = []
        for fleet in (*shown.HEADLINE, *shown.OTHER_FLEETS):
            race = shown.everybody(fleet, optimizer)
            table = _race(race, runner, "pace")
            lines += [*table, ""]
            if len(table) > 1:
                races.append((fleet, race))
        for level in shown.LEVELS["mnist"]:
            leads, beside = [], []
            for fleet, race in races:
                if fleet in shown.HEADLINE:
                    others = [label for label in race.ways if label not in (*shown.OURS, *shown.BESIDE)]
                    leads.append(lead(race.times(runner, level), "pace", others))
                    beside.append(lead(race.times(runner, level), "pace", shown.BESIDE))
            goal = f"to {100 * level:g} %, {optimizer}"
            lines += [_average(f"`pace` over the best of all others that were raced {goal}", leads), ""]
            lines += [_average(f"`pace` over ACCO with our micro-batches {goal}", beside), ""]
    return lines


def scheduled(runner: Runner) -> list[str]:
    lines = []
    races = [shown.scheduled(fleet) for fleet in shown.HEADLINE]
    for race in races:
        lines += [*race.table(runner, shown.FINE_PACE), ""]
    lines += [_scheduled_figure(races, runner), ""]
    others = [way for way in races[0].ways if way.startswith(("acco", "balanced", "wp")) and "equal-time" not in way]
    rivals = {
        "the best of balanced, wp and acco": others,
        "the best of them but ACCO": [way for way in others if not way.startswith("acco")],
        "ACCO with equal-time micro-batches": [way for way in races[0].ways if way.startswith("acco, equal-time")],
    }
    for level in races[0].levels:
        for whom, ways in rivals.items():
            leads = []
            for race in races:
                times = {label: race.time(runner, label, level) for label in race.ways}
                leads.append(lead(times, shown.FINE_PACE, ways))
            lines += [_average(f"`{shown.FINE_PACE}` over {whom}, to {100 * level:g} % with a schedule", leads), ""]
    return lines


def _scheduled_figure(races: Sequence[ScheduledRace], runner: Runner) -> str:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    labels = (shown.FINE_PACE, "pace", "acco, micro-batches of 8", "balanced", "wp")
    for axis, race in zip(figure.subplots(1, len(races), sharey=True), races, strict=True):
        for label in labels:
            ends = race.ends(runner, label)
            axis.plot([end[1] for end in ends], [100 * end[2] for end in ends], "o-", label=label, markersize=3)
        axis.set(xlabel="virtual seconds", title=race.fleet, xscale="log", xticks=[3, 5, 10, 20])
        axis.set_xticks([], minor=True)
        axis.set_xticklabels(["3", "5", "10", "20"])
    figure.axes[0].set_ylabel("accuracy at the end, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(IMAGES / "scheduled.png", dpi=120)
    return "![Accuracy at the end of a run over its length in seconds](../images/claims/scheduled.png)"


def alpha(runner: Runner) -> list[str]:
    rows = []
    for size in shown.ALPHA_BATCHES:
        for fleet in shown.ALPHA_FLEETS:
            race = shown.alpha(fleet, size)
            cells = []
            for level in race.levels:
                chosen, times = race.chosen(runner, level), race.times(runner, level)
                cells += [f"{describe(times[way])} ({chosen[way][0].lr:g})" for way in race.ways]
            rows.append((str(size), fleet, *cells))
    heads = [f"`{way}` to {100 * level:g} %" for level in race.levels for way in race.ways]
    return _table(("batch", "fleet", *heads), rows)


def final(runner: Runner) -> list[str]:
    rows = []
    for optimizer in ("sgd", "adamw"):
        for fleet, algorithm in (("mild", "sync"), *((f, "pace") for f in (*shown.HEADLINE, *shown.OTHER_FLEETS))):
            means = {}
            for lr in shown.FINAL_LRS["mnist", optimizer]:
                runs = [shown.to_the_end("mnist", fleet, algorithm, lr, optimizer, seed) for seed in shown.FINAL_SEEDS]
                means[lr] = statistics.mean(runner.of(run).final() for run in runs)
            lr = max(means, key=lambda lr: means[lr])
            rows.append((optimizer, f"`{algorithm}`", fleet, f"{lr:g}", f"{100 * means[lr]:.2f} %"))
    return _table(("optimizer", "way", "fleet", "lr", "final accuracy, 2 seeds"), rows)


def limit(runner: Runner) -> list[str]:
    rows = [
        (fleet, *(f"{runner.of(shown.limit(fleet, way)).share_of_limit:.3f}" for way in ("abs", "pace")))
        for fleet in PRESETS
    ]
    return _table(("preset", "`abs`", "`pace`"), rows)


Make = Callable[[Runner], list[str]]
SECTIONS: dict[str, Make] = {
    "grouping": grouping,
    "wp": wp,
    "od": od,
    "layered": layered,
    "abs": abs_,
    "pace": pace,
    "scheduled": scheduled,
    "alpha": alpha,
    "final": final,
    "limit": limit,
}
__all__ = ["write"]
